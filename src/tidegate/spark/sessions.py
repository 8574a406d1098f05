"""A Spark session with the settings that matter, and what a session made elsewhere lacks.

Python and the JVM talk over Unix-domain sockets, in Arrow, in UTC; sizes fit the machine. What the
JVM and its Python workers print goes to a log file, never to the terminal. docs/spark.md says why
for each setting. What spark-submit or Spark's own configuration says is kept; only what is missing
is added.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
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


LOCAL = "local[*]"
"""The master where nobody names one."""
_MASTER = "spark.master"
_MASTER_SECONDS = 5.0
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable by which spark-submit tells a Python program of the JVM that it has started."""
_LISTS = {
    "spark.jars": ",",
    "spark.jars.packages": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
}
"""Settings that add up: what several sources say is joined by this."""
_AT_START = (
    _MASTER,
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.submit.deployMode",
)
"""What a JVM has from its start, or never."""
_OPTIONS = {_MASTER: "--master", "spark.jars": "--jars", "spark.jars.packages": "--packages"}
"""The options of spark-submit with a name of their own."""


class Configuration(NamedTuple):
    """What Spark is told by others than Tidegate: by spark-submit, its files and its variables.

    `is_started` says that spark-submit has started the JVM: what belongs to its start cannot be
    added any more. `has_jars` says that the jars cannot be added to.
    """

    settings: Mapping[str, str]
    is_started: bool = False
    has_jars: bool = False

    @classmethod
    def find(cls) -> Configuration:
        """What holds for the session that is started next."""
        if _SUBMITTED in os.environ:
            SparkContext._ensure_initialized()
            return cls(dict(SparkConf().getAll()), is_started=True, has_jars=True)
        arguments, path = _submit_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
        return cls(_defaults(path) | arguments, has_jars="spark.jars" in arguments)

    def option(self, name: str, value: str) -> str:
        """How a user gives Spark a setting."""
        if self.is_started:
            own = _OPTIONS.get(name)
            option = f"{own} {value}" if own else f"--conf {name}={value}"
            return f"`{option}` of spark-submit"
        return f"`--spark-conf {name}={value}`"


def _submit_arguments(text: str) -> tuple[dict[str, str], Path | None]:
    """The settings in arguments of spark-submit, and the file of settings that they name."""
    settings: dict[str, str] = {}
    path = None
    names = {option: name for name, option in _OPTIONS.items()}
    words = shlex.split(text)
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, attached = word.partition("=")
        value = attached if equals else following
        if option in names:
            settings[names[option]] = value
        elif option in ("--conf", "-c"):
            name, _, content = value.partition("=")
            settings[name] = content
        elif option == "--properties-file":
            path = Path(value)
    return settings, path


def _defaults(path: Path | None) -> dict[str, str]:
    """What `spark-defaults.conf` says, or the file in its place."""
    if path is None:
        find: Any = _find_spark_home  # which has no types
        home = Path(os.environ.get("SPARK_HOME") or find())
        path = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    if not path.is_file():
        return {}
    settings = {}
    lines = re.sub(r"\\\r?\n[ \t]*", "", path.read_text(encoding="utf-8")).splitlines()
    for line in map(str.strip, lines):
        match = re.match(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", line)
        if match is not None and line[0] not in "#!":
            settings[match[1]] = match[2].strip()
    return settings


def running_session() -> SparkSession | None:
    """The session that was started in this process, if it runs.

    The active session may be another: PySpark activates each session that creates a DataFrame, and
    a lake in a catalog has a session of its own.
    """
    started = SparkSession._instantiatedSession
    if started is not None and started.sparkContext._jsc is not None:
        return started
    return SparkSession.getActiveSession()


def session(
    app: str = "tidegate",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    libraries: Sequence[str] = ("kafka", "iceberg", "delta"),
) -> SparkSession:
    """A Spark session for change feeds; a running one is taken as it is if it lacks nothing.

    Without `master` it is that of spark-submit or of Spark's configuration, else all cores of this
    machine. `settings` are Spark's own and win over Spark's configuration, which wins over
    `defaults` and over what is set here. `libraries` are those the session is to have (kafka,
    iceberg, delta): their jars come from Spark's own folder, else from a local one (`make jars`,
    $TIDEGATE_JARS), else Spark fetches them. Under spark-submit nothing can be added that the JVM
    must have from its start: SparkError says which option is missing.
    """
    for library in libraries:
        if library not in jars.LIBRARIES:
            known = ", ".join(jars.LIBRARIES)
            raise ConfigError("libraries", f"there is no library {library!r}; use {known}")
    running = running_session()
    if running is not None:
        return _running(running, settings or {}, libraries)
    there = Configuration.find()
    given = dict(settings or {}) | ({} if master is None else {_MASTER: master})
    _check_given(there, given)
    _check_needed(there, given, libraries)
    chosen = _settings(there, libraries, given, {**(defaults or {})})
    if SparkContext._gateway is None:
        _check_java()
        _check_master(chosen[_MASTER])
        if local_cores(chosen[_MASTER]) is not None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    named = {"spark.app.name": app, **chosen} if not there.is_started else chosen
    for name, value in named.items():
        builder = builder.config(name, value)
    # PySpark logs each failing query in JSON beside the exception that it raises.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with _launching():
        if SparkContext._gateway is None:
            _launch(named)
        spark = builder.getOrCreate()
    _check_jars(spark, there, libraries)
    return spark


def _check_given(there: Configuration, given: Mapping[str, str]) -> None:
    """Refuses what the caller asks of a JVM that spark-submit has started otherwise."""
    if not there.is_started:
        return
    for name in _AT_START:
        value = given.get(name)
        if value is None or value == there.settings.get(name):
            continue
        raise SparkError(
            f"spark-submit has started it, and {name} cannot be {value} any more "
            f"(it is {there.settings.get(name)})",
            f"Give the option {there.option(name, value)}",
        )


def _check_master(master: str) -> None:
    """Raises SparkError where no standalone master answers: Spark would try for a minute."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_MASTER_SECONDS).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
            continue
        return
    raise SparkError(
        f"no master answers at {master} ({'; '.join(reasons)})",
        "Start it, or correct --master (spark-submit: its own --master)",
    )


def _check_needed(there: Configuration, given: Mapping[str, str], libraries: Iterable[str]) -> None:
    """Refuses a configuration of Spark that says otherwise than it must be."""
    needed = dict(_NEEDED)
    if "delta" in libraries:
        (name, wanted), *_ = _DELTA_CATALOG.items()
        needed[name] = wanted, "Delta tables could not be written"
    for name, (wanted, why) in needed.items():
        value = there.settings.get(name)
        if name in given or value is None or _is_fine(name, value, wanted):
            continue
        raise SparkError(
            f"its configuration has {name}={value}: {why}",
            f"Give the option {there.option(name, wanted)}",
        )


def _check_jars(spark: SparkSession, there: Configuration, libraries: Sequence[str]) -> None:
    """Raises SparkError where the session has not got the jars of these libraries."""
    lacking = [
        jar
        for library in libraries
        for jar in jars.LIBRARIES[library]
        if not _has_class(spark, jar.provides)
    ]
    if not lacking:
        return
    names = ", ".join(jar.file for jar in lacking)
    spark.stop()
    if not there.has_jars:
        raise SparkError(f"it started without {names}", "Run `make jars`")
    place = jars.folder()
    files = [] if place is None else [place / jar.file for jar in lacking]
    missing_files = not files or not all(path.is_file() for path in files)
    name, values = (
        ("--packages", [jar.coordinates for jar in lacking])
        if missing_files
        else ("--jars", [str(path.absolute()) for path in files])
    )
    raise SparkError(
        f"spark-submit has started it without {names}",
        f"Add the option `{name} {','.join(values)}` to spark-submit",
    )


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
        if value is None or not _is_fine(name, value, wanted):
            found.append(f"the setting {name}={wanted} (it is {value}): {why}")
    return found


def _is_fine(name: str, value: str, wanted: str) -> bool:
    return _bytes(value) <= int(wanted) if name == _AT_MOST else _same(value, wanted)


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
    there: Configuration,
    libraries: Sequence[str],
    given: Mapping[str, str],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """All that the session is told: the caller's word, then what is there, then what fits."""
    master = given.get(_MASTER) or there.settings.get(_MASTER) or LOCAL
    ours = {
        **{name: value for name, (value, _) in _NEEDED.items()},
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(MAX_BATCH_RECORDS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.structuredLogging.enabled": "false",
        **(_DELTA_CATALOG if "delta" in libraries else {}),
        **_sizes(master),
        **defaults,
        _MASTER: master,
    }
    chosen = {**ours, **there.settings, **given}
    extensions = [EXTENSIONS[library] for library in libraries if library in EXTENSIONS]
    added = {"spark.sql.extensions": extensions}
    if not there.has_jars:
        found = jars.find(libraries)
        added["spark.jars"] = [str(path.absolute()) for path in found.files]
        added["spark.jars.packages"] = list(found.packages)
    if not there.is_started:
        quiet = f'"-Dlog4j2.configurationFile={_log_settings()}"'
        added["spark.driver.extraJavaOptions"] = [quiet]
    for name, values in added.items():
        mark = _LISTS[name]
        # Of what the caller says, what is there and what is added, each counts once.
        sources = (mark.join(values), *(source.get(name, "") for source in (there.settings, given)))
        parts = [part for text in sources for part in (text.split(",") if mark == "," else [text])]
        joined = mark.join(dict.fromkeys(part for part in parts if part))
        if joined:
            chosen[name] = joined
    return chosen


def _sizes(master: str) -> dict[str, str]:
    """What fits this machine where the executors are in the driver."""
    cores = local_cores(master)
    if cores is None:
        return {}
    return {
        "spark.driver.memory": f"{_driver_gib()}g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
    }


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
