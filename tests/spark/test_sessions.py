"""A session has what feeds need, and one made elsewhere is told what it lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tidegate.model import ConfigError, SparkError
from tidegate.spark import jars, missing, session, sessions
from tidegate.spark.sessions import Configuration

LIBRARIES = ("kafka", "iceberg", "delta")


def test_the_session_lacks_nothing(spark: SparkSession) -> None:
    assert missing(spark, LIBRARIES) == []
    assert session(libraries=LIBRARIES) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sql("SELECT current_timezone()").first() == ("UTC",)


def test_the_session_is_the_one_that_was_started_whichever_made_the_last_dataframe(
    spark: SparkSession,
) -> None:
    spark.newSession().createDataFrame([(1,)], "a int")
    try:
        assert session() is spark
    finally:
        spark.createDataFrame([(1,)], "a int")


def test_what_a_session_lacks_is_told(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    other.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "1g")

    assert [what.partition(" (")[0] for what in missing(other)] == [
        "the setting spark.sql.session.timeZone=UTC",
        "the setting spark.sql.execution.arrow.maxBytesPerBatch=67108864",
    ]


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4, 2]", 4),
        ("yarn", None),
        ("local-cluster[2,1,1]", None),
    ],
)
def test_the_threads_of_a_master(master: str, cores: int | None) -> None:
    assert sessions.local_cores(master) == cores


def test_a_library_that_there_is_none_of() -> None:
    with pytest.raises(ConfigError, match="there is no library 'hudi'; use kafka, iceberg, delta"):
        session(libraries=["hudi"])


def fake_java(home: Path, said: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11, and Spark needs 17 or newer"),
        ('java version "1.8.0_372"', "is Java 8, and Spark needs 17 or newer"),
        ("no", "-version` does not work: no"),
    ],
)
def test_java_that_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, said)))
    with pytest.raises(SparkError, match=message):
        sessions._check_java()


def test_java_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match="there is no bin/java in it"):
        sessions.java_command()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkError, match="there is no Java on this machine"):
        sessions.java_command()


def test_the_caller_wins_over_sparks_configuration_which_wins_over_tidegates_own() -> None:
    there = Configuration({"spark.ui.enabled": "true", "spark.driver.memory": "2g"}, has_jars=True)
    given = {"spark.driver.memory": "3g"}
    chosen = sessions._settings(there, ["kafka"], given, {"spark.ui.enabled": "0", "x": "y"})
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.driver.memory"] == "3g"
    assert chosen["x"] == "y"
    assert chosen["spark.master"] == "local[*]"
    assert "spark.sql.extensions" not in chosen


def test_jars_packages_and_extensions_are_added_to_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jar in jars.ICEBERG:
        (tmp_path / jar.file).touch()
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path))
    there = Configuration({"spark.jars": "theirs.jar", "spark.sql.extensions": "a.Theirs"})
    given = {"spark.jars": "mine.jar", "spark.jars.packages": "g:a:1"}
    chosen = sessions._settings(there, ["iceberg", "kafka"], given, {})
    iceberg = [str(tmp_path / jar.file) for jar in jars.ICEBERG]
    assert chosen["spark.jars"].split(",") == [*iceberg, "theirs.jar", "mine.jar"]
    kafka = [jar.coordinates for jar in jars.KAFKA]
    assert chosen["spark.jars.packages"].split(",") == [*kafka, "g:a:1"]
    assert chosen["spark.sql.extensions"].split(",") == [sessions.EXTENSIONS["iceberg"], "a.Theirs"]


@pytest.mark.parametrize(
    ("there", "given", "master"),
    [
        ({}, {}, "local[*]"),
        ({"spark.master": "spark://m:7077"}, {}, "spark://m:7077"),
        ({"spark.master": "spark://m:7077"}, {"spark.master": "local[2]"}, "local[2]"),
    ],
)
def test_the_master_of_sparks_configuration_counts_where_none_is_given(
    there: dict[str, str], given: dict[str, str], master: str
) -> None:
    chosen = sessions._settings(Configuration(there, has_jars=True), [], given, {})
    assert chosen["spark.master"] == master
    # Sizes of this machine are none of a cluster's.
    assert ("spark.driver.memory" in chosen) == master.startswith("local")


def test_sparks_configuration_is_read_as_spark_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "# spark.master none\n\nspark.master   spark://m:7077\nspark.jars=a.jar,\\\n  b.jar\n"
        "spark.x: a = b\n! spark.y no\n"
    )
    (tmp_path / "spark-defaults.conf").write_text(text)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert Configuration.find() == Configuration(
        {"spark.master": "spark://m:7077", "spark.jars": "a.jar,b.jar", "spark.x": "a = b"}
    )
    arguments = "--master yarn --jars=c.jar --conf spark.x=1 -c 'spark.z=2 3' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    expected = {"spark.master": "yarn", "spark.jars": "c.jar", "spark.x": "1", "spark.z": "2 3"}
    assert Configuration.find() == Configuration(expected, has_jars=True)


SUBMITTED = Configuration(
    {"spark.master": "spark://m:7077", "spark.driver.memory": "1g"}, is_started=True, has_jars=True
)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"spark.master": "local[2]"}, "`--master local[2]` of spark-submit"),
        ({"spark.driver.memory": "2g"}, "`--conf spark.driver.memory=2g` of spark-submit"),
        ({"spark.jars": "a.jar"}, "`--jars a.jar` of spark-submit"),
    ],
)
def test_what_spark_submit_has_settled_is_refused_with_the_option_to_give(
    given: dict[str, str], option: str
) -> None:
    with pytest.raises(SparkError) as refusal:
        sessions._check_given(SUBMITTED, given)
    assert f"Give the option {option}." in str(refusal.value)
    sessions._check_given(SUBMITTED, dict(SUBMITTED.settings))


@pytest.mark.parametrize(("is_started", "option"), [(True, "--conf"), (False, "--spark-conf")])
def test_a_configuration_that_says_otherwise_than_it_must_be_is_refused(
    is_started: bool, option: str
) -> None:
    zone = "spark.sql.session.timeZone"
    there = Configuration({zone: "Asia/Tokyo"}, is_started=is_started)
    with pytest.raises(SparkError, match=f"{option} {zone}=UTC`"):
        sessions._check_needed(there, {}, [])
    sessions._check_needed(there, {zone: "UTC"}, [])


def submitted(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a program by spark-submit with options, which is all that Spark is told."""
    (folder / "run.py").write_text(program)
    home = Path(pyspark.__file__).parent
    return subprocess.run(
        [home / "bin" / "spark-submit", *options, "run.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SPARK_CONF_DIR": str(folder), "PYSPARK_PYTHON": sys.executable},
    )


def test_what_spark_submit_says_is_kept_and_what_is_missing_is_added(tmp_path: Path) -> None:
    program = """
from tidegate.spark import session
spark = session(libraries=("iceberg",))
names = ("spark.master", "spark.app.name", "spark.sql.shuffle.partitions", "spark.sql.extensions")
print(*map(spark.conf.get, names), spark.conf.get("spark.sql.session.timeZone"))
"""
    place = jars.folder()
    assert place is not None
    files = ",".join(str(place / jar.file) for jar in jars.ICEBERG)
    options = ("--master", "local[1]", "--name", "mine", "--conf", "spark.sql.shuffle.partitions=7")
    done = submitted(tmp_path, program, *options, "--jars", files)
    assert done.stdout.split() == ["local[1]", "mine", "7", sessions.EXTENSIONS["iceberg"], "UTC"]


def test_a_jar_that_spark_submit_was_not_given_is_refused_with_the_option(tmp_path: Path) -> None:
    program = """
from tidegate.spark import session
try:
    session(libraries=("iceberg",))
except Exception as error:
    print(error)
"""
    done = submitted(tmp_path, program, "--master", "local[1]")
    place = jars.folder()
    assert place is not None
    files = ",".join(str((place / jar.file).absolute()) for jar in jars.ICEBERG)
    names = ", ".join(jar.file for jar in jars.ICEBERG)
    assert done.stdout.strip() == (
        f"Spark cannot be used: spark-submit has started it without {names}. Add the option "
        f"`--jars {files}` to spark-submit."
    )


def test_an_interrupt_while_spark_starts_counts_when_it_has() -> None:
    """PySpark's launcher, cut off in between, would leave a Java process that never ends."""
    before = signal.getsignal(signal.SIGINT)
    started = []

    def start() -> None:
        with sessions._launching():
            signal.raise_signal(signal.SIGINT)
            started.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started
    assert signal.getsignal(signal.SIGINT) is before


# --- what the JVM prints --------------------------------------------------------------------------


def test_a_jvm_that_does_not_start_says_nothing_but_the_error_and_its_log(tmp_path: Path) -> None:
    program = "from tidegate.cli.app import main; main()"
    lake = tmp_path / "lake"
    (tmp_path / "empty.jsonl").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", program, "mirror", tmp_path / "empty.jsonl", "--lake", lake],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SPARK_SUBMIT_OPTS": "-agentlib:none", "TMPDIR": str(tmp_path)},
    )
    (log,) = tmp_path.glob("tidegate-spark-*.log")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "tidegate: Spark cannot be used: its Java process ended at once (Could not find agent"
    )
    assert line.endswith(f"Its log is {log}.")
    assert "agent library" in log.read_text()
    assert not lake.exists()
