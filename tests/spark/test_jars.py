"""Where the jars of a session come from."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tidegate.model import SparkError
from tidegate.spark import jars


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No jars anywhere but where a test puts them."""
    monkeypatch.delenv(jars.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "jars.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(folder: Path, *libraries: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        for jar in jars.LIBRARIES[library]:
            (folder / jar.file).touch()


def test_the_folder_is_the_named_one_else_the_project_s_else_the_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jars.folder() is None
    fill(nowhere / "cache" / "tidegate" / "jars")
    assert jars.folder() == nowhere / "cache" / "tidegate" / "jars"
    fill(nowhere / ".jars")
    assert jars.folder() == nowhere / ".jars"
    fill(nowhere / "mine")
    monkeypatch.setenv(jars.VARIABLE, str(nowhere / "mine"))
    assert jars.folder() == nowhere / "mine"
    monkeypatch.setenv(jars.VARIABLE, str(nowhere / "none"))
    with pytest.raises(SparkError, match="which is no folder"):
        jars.folder()


def test_a_library_comes_whole_from_one_place(nowhere: Path) -> None:
    fill(nowhere / ".jars", "iceberg", "kafka")
    (nowhere / ".jars" / jars.KAFKA[1].file).unlink()

    found = jars.find(["kafka", "iceberg"])
    assert [path.name for path in found.files] == [jar.file for jar in jars.ICEBERG]
    assert found.packages == tuple(jar.coordinates for jar in jars.KAFKA)


def test_optional_libraries_are_taken_where_they_are_whole(nowhere: Path) -> None:
    fill(nowhere / ".jars", "iceberg", "s3a")
    wanted = [jar.file for jar in (*jars.ICEBERG, *jars.S3, *jars.S3A)]
    found = jars.find(["iceberg"])
    assert [path.name for path in found.files] == list(dict.fromkeys(wanted))
    assert found.packages == ()

    (nowhere / ".jars" / jars.S3A[0].file).unlink()
    found = jars.find(["iceberg"])
    assert [path.name for path in found.files] == [jar.file for jar in (*jars.ICEBERG, *jars.S3)]
    assert found.packages == ()
    assert jars.find(["postgresql"]).packages == (jars.POSTGRESQL[0].coordinates,)


def test_a_jar_with_a_classifier_is_another_file_of_the_same_artifact() -> None:
    fixtures = jars.REST_CATALOG.jars[0]
    assert fixtures.file == "iceberg-open-api-1.11.0-test-fixtures.jar"
    assert "<classifier>test-fixtures</classifier>" in jars.pom([fixtures])
    assert "classifier" not in jars.pom(jars.ICEBERG)


def test_what_spark_has_is_not_added(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nowhere / "spark" / "jars", "delta")
    (nowhere / "spark" / "jars" / jars.ICEBERG[0].file.replace("1.12.0", "1.11.0")).touch()
    monkeypatch.setenv("SPARK_HOME", str(nowhere / "spark"))

    assert jars.find(["delta"]) == jars.Found()
    assert jars.find(["iceberg"]).packages == (jars.ICEBERG[1].coordinates,)


def test_the_pom_has_every_jar_and_nothing_transitive() -> None:
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    project = ElementTree.fromstring(jars.pom(jars.KAFKA))
    listed = [
        ":".join(
            entry.findtext(f"m:{part}", "", space) for part in ("groupId", "artifactId", "version")
        )
        for entry in project.iterfind("m:dependencies/m:dependency", space)
    ]
    assert listed == [jar.coordinates for jar in jars.KAFKA]
    excluded = project.findall(".//m:exclusion/m:artifactId", space)
    assert [element.text for element in excluded] == ["*"] * len(jars.KAFKA)
    assert "exclusion" not in jars.pom(jars.BROKER.jars, transitive=True)


def test_nothing_is_fetched_twice_and_maven_is_asked_for(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    fill(nowhere / "here", "kafka")
    jars.fetch(nowhere / "here", jars.KAFKA)
    with pytest.raises(SparkError, match="Install Maven, or put iceberg-spark-runtime"):
        jars.fetch(nowhere / "here", jars.ICEBERG)
