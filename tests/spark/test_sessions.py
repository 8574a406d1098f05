"""A session has what feeds need, and one made elsewhere is told what it lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidegate.model import ConfigError, SparkError
from tidegate.spark import missing, session, sessions

LIBRARIES = ("kafka", "iceberg", "delta")


def test_the_session_lacks_nothing(spark: SparkSession) -> None:
    assert missing(spark, LIBRARIES) == []
    assert session(libraries=LIBRARIES) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sql("SELECT current_timezone()").first() == ("UTC",)


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


def test_settings_of_the_caller_win_and_jars_are_joined(tmp_path: Path) -> None:
    from tidegate.spark.jars import Found

    given = {"spark.ui.enabled": "true", "spark.jars": "mine.jar", "spark.driver.memory": "3g"}
    chosen = sessions._settings(
        "local[2]", Found((tmp_path / "a.jar",), ("g:a:1",)), ["kafka"], given
    )
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.driver.memory"] == "3g"
    assert chosen["spark.jars"] == f"{tmp_path / 'a.jar'},mine.jar"
    assert chosen["spark.jars.packages"] == "g:a:1"
    assert "spark.sql.extensions" not in chosen
    assert "spark.driver.memory" not in sessions._settings("yarn", Found(), [], {})


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
