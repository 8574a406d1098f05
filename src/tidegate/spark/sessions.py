"""A Spark session with the settings that matter, and what a session made elsewhere lacks.

Python and the JVM talk over Unix-domain sockets, in Arrow, in UTC; sizes fit the machine. What the
JVM and its Python workers print goes to a log file, never to the terminal. docs/spark.md says why
for each setting. Any of them can be overridden.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.model import ConfigError, SparkError
from tidegate.spark import jars

OLDEST_JAVA = 17
MAX_BATCH_RECORDS = 10_000
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bounds of what crosses to a Python worker at a time: messages may have megabytes each."""

EXTENSIONS = {
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
_DELTA_CATALOG = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"
}
_GIB = 1024**3

# What `missing` asks of a session, and why.
_NEEDED = {
    "spark.python.unix.domain.socket.enabled": ("true", "loopback TCP to Python can hang"),
    "spark.sql.session.timeZone": ("UTC", "TIMESTAMP values would show in another zone"),
    "spark.sql.execution.arrow.useLargeVarTypes": ("false", "the decoders take plain Arrow types"),
    "spark.sql.execution.arrow.maxBytesPerBatch": (
        str(MAX_BATCH_BYTES),
        "large messages could fill the memory of Python workers",
    ),
}
_AT_MOST = "spark.sql.execution.arrow.maxBytesPerBatch"


def session(
    app: str = "tidegate",
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    libraries: Sequence[str] = ("kafka", "iceberg", "delta"),
) -> SparkSession:
    """A Spark session for change feeds; a running one is taken as it is if it lacks nothing.

    `settings` are Spark's own and win over what is set here. `libraries` are those the session is
    to have (kafka, iceberg, delta): their jars come from Spark's own folder, else from a local one
    (`make jars`, $TIDEGATE_JARS), else Spark fetches them.
    """
    for library in libraries:
        if library not in jars.LIBRARIES:
            known = ", ".join(jars.LIBRARIES)
            raise ConfigError("libraries", f"there is no library {library!r}; use {known}")
    running = SparkSession.getActiveSession()
    if running is not None:
        return _running(running, settings or {}, libraries)
    if SparkContext._gateway is None:
        _check_java()
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = jars.find(libraries)
    chosen = _settings(master, found, libraries, settings or {})
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    # PySpark logs each failing query in JSON beside the exception that it raises.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with _launching():
        if SparkContext._gateway is None:
            _launch({"spark.app.name": app, "spark.master": master, **chosen})
        spark = builder.getOrCreate()
    lacking = [f"{what}" for what in missing(spark, libraries) if what.startswith("the jar")]
    if lacking:
        raise SparkError(f"it started without {'; '.join(lacking)}", "Run `make jars`")
    return spark


class _Log:
    """The file that has what the JVM prints; it goes with the process unless it is kept."""

    path: Path | None = None

    @classmethod
    def open(cls) -> int:
        number, name = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
        cls.path = Path(name)
        atexit.register(cls.remove)
        return number

    @classmethod
    def remove(cls) -> None:
        if cls.path is not None:
            cls.path.unlink(missing_ok=True)

    @classmethod
    def keep(cls) -> None:
        atexit.unregister(cls.remove)


def kept_log() -> Path | None:
    """The log of the JVM that was started here, kept from now on; None if it has said nothing."""
    if _Log.path is None or not _Log.path.is_file() or not _Log.path.stat().st_size:
        return None
    _Log.keep()
    return _Log.path


def _launch(chosen: Mapping[str, str]) -> None:
    """Starts the JVM with its output in a file: it and its Python workers would write anywhere."""
    conf = SparkConf()
    conf.setAll(list(chosen.items()))
    log = _Log.open()
    try:
        launch: Any = launch_gateway  # which has no types
        gateway = launch(conf, {"stdout": log, "stderr": log})
    except PySparkRuntimeError as error:
        said = _last_line(kept_log())
        raise SparkError(
            f"its Java process ended at once{said}", f"Its log is {_Log.path}"
        ) from error
    finally:
        os.close(log)
    SparkContext._ensure_initialized(gateway=gateway)


def _last_line(log: Path | None) -> str:
    lines = [] if log is None else log.read_text(errors="replace").strip().splitlines()
    return f" ({lines[-1].strip().rstrip('.')})" if lines else ""


@contextmanager
def _launching() -> Iterator[None]:
    """Ctrl-C counts when Spark has started: cut off before, its Java process would never end."""
    asked: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    except ValueError:  # not the main thread: nothing interrupts it
        yield
        return
    ours = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is ours:  # else it is PySpark's own by now
            signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def missing(spark: SparkSession, libraries: Iterable[str] = ("kafka",)) -> list[str]:
    """What a session lacks for change feeds, each in words with what to do; empty if nothing."""
    found = []
    for library in libraries:
        for jar in jars.LIBRARIES[library]:
            if not _has_class(spark, jar.provides):
                found.append(f"the jar of {jar.coordinates}: add it to spark.jars.packages")
        extension = EXTENSIONS.get(library)
        if extension and extension not in (spark.conf.get("spark.sql.extensions", "") or ""):
            found.append(f"the extension {extension}: add it to spark.sql.extensions")
    for name, (wanted, why) in _NEEDED.items():
        value = spark.conf.get(name, None)
        fine = value is not None and (
            _bytes(value) <= int(wanted) if name == _AT_MOST else _same(value, wanted)
        )
        if not fine:
            found.append(f"the setting {name}={wanted} (it is {value}): {why}")
    return found


def _same(value: str, wanted: str) -> bool:
    zones = ("utc", "etc/utc", "z", "gmt", "utc+0")
    return value.lower() == wanted.lower() or (wanted == "UTC" and value.lower() in zones)


def _bytes(text: str) -> int:
    """A size as Spark shows it: 67108864b, 64m."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
    if match is None:
        return sys.maxsize
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _running(
    spark: SparkSession, settings: Mapping[str, str], libraries: Iterable[str]
) -> SparkSession:
    """The session that runs already, with what can still be set; raises if it lacks more."""
    wanted = {name: value for name, (value, _) in _NEEDED.items()} | dict(settings)
    for name, value in wanted.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    lacking = missing(spark, libraries)
    if lacking:
        raise SparkError(
            f"a session runs already, and it lacks {'; '.join(lacking)}",
            "Stop it first, or start it with these",
        )
    return spark


def _settings(
    master: str, found: jars.Found, libraries: Iterable[str], given: Mapping[str, str]
) -> dict[str, str]:
    chosen = {
        **{name: value for name, (value, _) in _NEEDED.items()},
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(MAX_BATCH_RECORDS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.extensions": ",".join(
            EXTENSIONS[library] for library in libraries if library in EXTENSIONS
        ),
    }
    if "delta" in libraries:
        chosen |= _DELTA_CATALOG
    chosen = {name: value for name, value in chosen.items() if value}
    cores = local_cores(master)
    if cores is not None:
        chosen |= {
            "spark.driver.memory": f"{_driver_gib()}g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(2, cores)),
        }
    if found.files:
        chosen["spark.jars"] = ",".join(str(path.absolute()) for path in found.files)
    if found.packages:
        chosen["spark.jars.packages"] = ",".join(found.packages)
    quiet = f'"-Dlog4j2.configurationFile={_log_settings()}"'
    chosen["spark.driver.extraJavaOptions"] = quiet
    # Where both name jars or options of the JVM, both are wanted; else the caller's word counts.
    together = {"spark.jars": ",", "spark.jars.packages": ",", "spark.driver.extraJavaOptions": " "}
    for name, value in given.items():
        if name in chosen and name in together:
            value = chosen[name] + together[name] + value
        chosen[name] = value
    return chosen


def _log_settings() -> str:
    return Path(str(files("tidegate.spark") / "log4j2.properties")).as_uri()


def local_cores(master: str) -> int | None:
    """The threads of a local master; None for a cluster."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if match is None:
        return None
    if match[1] is None:
        return 1
    return len(os.sched_getaffinity(0)) if match[1] == "*" else int(match[1])


def _driver_gib() -> int:
    """A quarter of the machine, from 1 to 8 GiB: Python workers need much of the rest."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(8, max(1, total // 4 // _GIB))


def _has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver can load the class, also from jars that were added later."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    path = name.replace(".", "/") + ".class"
    return loader.getResource(path) is not None


def java_command() -> str:
    """The `java` that Spark will start; SparkError where there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not path.is_file():
            raise SparkError(
                f"JAVA_HOME is {home}, and there is no bin/java in it",
                f"Point it to a JDK of version {OLDEST_JAVA} or newer, or unset it",
            )
        return str(path)
    found = shutil.which("java")
    if found is None:
        raise SparkError(
            "there is no Java on this machine",
            f"Install a JDK of version {OLDEST_JAVA} or newer, for example openjdk-17-jre-headless",
        )
    return found


def _check_java() -> None:
    command = java_command()
    told = subprocess.run([command, "-version"], capture_output=True, text=True)
    text = told.stderr + told.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if told.returncode != 0 or match is None:
        raise SparkError(
            f"`{command} -version` does not work: {text.strip()[:200]}",
            f"Install a JDK of version {OLDEST_JAVA} or newer",
        )
    if int(match[1]) < OLDEST_JAVA:
        raise SparkError(
            f"{command} is Java {match[1]}, and Spark needs {OLDEST_JAVA} or newer",
            f"Install a JDK of version {OLDEST_JAVA} or newer and point JAVA_HOME to it",
        )
