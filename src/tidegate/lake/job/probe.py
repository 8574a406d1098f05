"""Proves, before anything is read, that every executor of a cluster can do its work.

An executor must have the driver's version of Python and of Tidegate, and must share the lake's
storage with the driver: it reads a file that the driver wrote there, and the driver reads one that
it wrote. Nothing that the probe writes stays. Where Spark is local nothing is asked.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate import __version__
from tidegate.lake.apply.failures import causes
from tidegate.lake.formats.log_table import LogTable
from tidegate.lake.job import executor_check
from tidegate.lake.job.diagnosis import store_problem
from tidegate.lake.storage.file_store import FileStore, is_remote
from tidegate.model import LakeError, SparkError
from tidegate.spark.sessions import local_cores

FOLDER = "probe-"
"""How the name of the folder begins that a probe makes beside the files of the changelog."""
_DRIVER_FILE = "driver"
_TASKS_PER_SLOT = 4
_ROUNDS = 20
"""How often to ask at most while executors join or leave."""
_ANSWER_TYPE = "host string, executor string, file string, problem string"
_MODULES = (
    "tidegate.lake.changelog.ingest",
    "confluent_kafka",
    "deltalake",
    "pyiceberg.io.pyarrow",
)
"""What tasks import, with everything that these need."""
WAITING = "spark.scheduler.maxRegisteredResourcesWaitingTime"
"""Spark's setting for how long an application waits for executors."""
_WAIT_SECONDS, _START_SECONDS = 20.0, 120.0
"""How long by default: a standalone worker starts an executor at once, others start a container."""
_OF_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
"""What a thread has of the group of its jobs."""
_BOUNDED = {"s3.connect-timeout": "5", "s3.request-timeout": "10"}
"""Settings of a file store that does not wait for minutes."""


class Answer(NamedTuple):
    """What an executor says; `file` is what it wrote, `problem` why it could not."""

    host: str
    executor: str
    file: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What Spark sends to its Python workers: the location of a folder, and what opens it."""

    folder: str
    token: str
    store: FileStore = field(default_factory=FileStore)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One answer a task, in rows of `_ANSWER_TYPE`."""
        for _ in batches:
            pass
        columns = {
            name: pa.array([value], pa.string()) for name, value in self.ask()._asdict().items()
        }
        yield pa.RecordBatch.from_pydict(columns)

    def ask(self) -> Answer:
        """Reads the driver's file and writes one for it, on the machine that this runs on."""
        executor = os.environ.get("SPARK_LOCAL_DIRS") or str(os.getppid())
        answer = partial(Answer, socket.gethostname(), executor)
        try:
            content = self.read(_DRIVER_FILE)
        except Exception as error:
            reason = f"it cannot read a file that the driver wrote there ({_reason(error)})"
            return answer(problem=reason)
        if content != self.token:
            return answer(problem="a file that the driver wrote there has another content for it")
        name = uuid.uuid4().hex
        try:
            self.write(name)
        except Exception as error:
            return answer(problem=f"it cannot write a file there ({_reason(error)})")
        return answer(name)

    def problem_of(self, answer: Answer) -> str | None:
        """What an executor's answer shows to be wrong, for the driver; None if nothing is."""
        if answer.file is None:
            return answer.problem
        try:
            content = self.read(answer.file)
        except Exception as error:
            return f"the driver cannot read a file that it wrote there ({_reason(error)})"
        if content != self.token:
            return "a file that it wrote there has another content for the driver"
        return None

    def read(self, name: str) -> str:
        """The content of a file."""
        files, path = self._place()
        with files.open_input_stream(f"{path}/{name}") as stream:
            return str(stream.read(), "utf-8", "replace")

    def write(self, name: str) -> None:
        """Writes a file."""
        files, path = self._place()
        with files.open_output_stream(f"{path}/{name}") as stream:
            stream.write(self.token.encode())

    def make(self) -> None:
        """Makes the folder, with the driver's file."""
        files, path = self._place()
        if not is_remote(self.folder):
            files.create_dir(path, recursive=True)
        self.write(_DRIVER_FILE)

    def remove(self) -> None:
        """Removes the folder where this runs, if it is there."""
        files, path = self._place()
        with suppress(FileNotFoundError):
            files.delete_dir(path)

    def _place(self) -> tuple[Any, str]:
        return self.store.filesystem(self.folder), self.store.path(self.folder)


@dataclass(frozen=True, slots=True)
class _Removal:
    """Removes a probe's folder where a worker runs: only there, if the folder is not shared."""

    probe: Probe

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.probe.remove()
        yield from batches


class ExecutorProbe:
    """Whether every executor that works on a lake can do so.

    Executors may join at any time: `check` is for before each step, and does nothing while the
    executors are those that have proved it. Both checks do nothing where Spark is local.
    """

    def __init__(self, spark: SparkSession, log: LogTable, lake: str) -> None:
        """`log` is a log of the lake: its store is what the executors must share."""
        self.refusal: LakeError | None = None
        """What `check_files` has raised: it is lost on the way through a task."""
        self._spark = spark
        self._log = log
        self._lake = lake
        self._is_needed = local_cores(spark.sparkContext.master or "") is None
        self._proven: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raises SparkError or LakeError where an executor cannot work on the lake."""
        if not self._is_needed:
            return
        executors = executors_of(self._spark)
        if not executors or not executors <= self._proven:
            check_environment(self._spark)
            self._proven = prove(self._spark, self._log, self._lake)

    def check_files(self, paths: Iterable[str]) -> None:
        """Raises LakeError where files that executors have written are not there for the driver."""
        if not self._is_needed:
            return
        for path in paths:
            if not is_remote(path) and not Path(FileStore().path(path)).is_file():
                problem = f"the driver cannot read the file {path!r} that it wrote"
                self.refusal = not_shared(self._lake, path, [("another machine", problem)])
                raise self.refusal


# --- Python and Tidegate --------------------------------------------------------------------------


def check_environment(spark: SparkSession) -> None:
    """Raises SparkError where the cluster gives no executor, or one cannot run Tidegate.

    Does nothing where Spark is local.
    """
    if local_cores(spark.sparkContext.master or "") is not None:
        return
    by_value: Any = cloudpickle.register_pickle_by_value  # which has no types
    by_value(executor_check)
    ask = partial(executor_check.environment, __version__, _MODULES)

    def run() -> list[Answer]:
        context = spark.sparkContext
        tasks = _tasks(spark)
        with _watching(spark):
            rows = context.parallelize(range(tasks), tasks).mapPartitions(ask).collect()
        return [Answer(host, executor, None, problem) for host, executor, problem in rows]

    answers, _ = _answers(spark, run)
    problems = [(answer.host, answer.problem) for answer in answers if answer.problem]
    if problems:
        raise SparkError(
            f"{_executors_named(problems)} cannot run Tidegate: {problems[0][1]}",
            "Install the driver's version of Tidegate for that Python on every machine of the "
            "cluster, or name another Python in the variable PYSPARK_PYTHON",
        )


@contextmanager
def _watching(spark: SparkSession) -> Iterator[None]:
    """Ends the jobs of this thread if the cluster gives the application no executor."""
    context = spark.sparkContext
    seconds = _waiting_seconds(context.getConf().get(WAITING), context.master or "")
    group, done, given_up = f"probe-{uuid.uuid4().hex}", threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(seconds) and not executors_of(spark):
            given_up.set()
            context.cancelJobGroup(group)

    context.setJobGroup(group, "tidegate: what executors have", interruptOnCancel=True)
    watcher = threading.Thread(target=watch, name="probe", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if given_up.is_set():
            raise SparkError(
                f"the cluster {context.master} has started no executor in {seconds:.0f} s: no "
                "worker has the cores and the memory free that one needs, or each ends at once",
                "Look at the master's page, ask for less (spark.cores.max, spark.executor.cores, "
                f"spark.executor.memory), or wait longer with `--spark-conf {WAITING}=300s`",
            ) from error
        raise unusable_python(error) or error from error
    finally:
        done.set()
        watcher.join()
        for name in _OF_GROUP:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def _waiting_seconds(text: str | None, master: str) -> float:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)?", text or "")
    if match is None:
        return _WAIT_SECONDS if master.startswith("spark://") else _START_SECONDS
    return int(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[match[2] or "ms"]


_NO_PYTHON = re.compile(
    r"No module named '?[\w.]+'?|PYTHON_VERSION_MISMATCH\]?[^\n]*|Cannot run program [^\n]*"
)
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+)\)")


def unusable_python(error: BaseException) -> SparkError | None:
    """What to say where executors have no Python that can run Tidegate; None for another error."""
    for text in causes(error):
        match = _NO_PYTHON.search(text)
        if match is not None:
            lost = _LOST_TASK.search(" ".join(causes(error)))
            whose = f"the executor {lost[2]} on {lost[1]}" if lost else "an executor"
            return SparkError(
                f"{whose} cannot run Tidegate ({match[0].rstrip('.')})",
                "Install the driver's versions of Python and Tidegate on every machine of the "
                "cluster, and name that Python in the variable PYSPARK_PYTHON",
            )
    return None


# --- storage --------------------------------------------------------------------------------------


def prove(spark: SparkSession, log: LogTable, lake: str) -> frozenset[str]:
    """Has every executor prove that it shares the lake's storage with the driver; their ids."""
    writer = log.writer()
    store = FileStore.of(_BOUNDED | dict(writer.store.properties))
    probe = Probe(f"{writer.folder}/{FOLDER}{uuid.uuid4().hex}", uuid.uuid4().hex, store)
    with _probing(probe, lake):
        run = partial(_run, spark, probe, _ANSWER_TYPE)
        answers, executors = _answers(spark, lambda: [Answer(*row) for row in run()])
        reports = [(answer.host, probe.problem_of(answer)) for answer in answers]
        problems = [(host, problem) for host, problem in reports if problem is not None]
        if problems:
            refusal = not_shared(lake, writer.folder, problems)
            try:
                _run(spark, _Removal(probe), "id long")
            except (PySparkException, Py4JJavaError, SparkError) as error:
                refusal.add_note(f"Executors may still have {probe.folder}: {error}")
            raise refusal
        return executors


@contextmanager
def _probing(probe: Probe, lake: str) -> Iterator[None]:
    """With the driver's file in a new folder, removed in the end."""
    parent = Path(probe.store.path(probe.folder)).parent
    was_there = is_remote(probe.folder) or parent.exists()
    try:
        try:
            probe.make()
        except OSError as error:
            raise LakeError(
                f"The driver cannot write to the storage of the lake {lake!r}, "
                f"{probe.folder.rpartition('/')[0]!r}: {_reason(error)}",
                "See to its permissions and credentials, and start the mirror again",
            ) from error
        yield
    finally:
        with suppress(OSError):  # an object store that failed above fails here again
            probe.remove()
            if not was_there:
                parent.rmdir()


def not_shared(lake: str, folder: str, problems: Sequence[tuple[str, str]]) -> LakeError:
    """What to say of hosts that have problems with the storage; the first problem is told."""
    step = (
        "See that every executor reaches the object store, with the credentials of the catalog"
        if is_remote(folder)
        else "Give a --lake folder that all machines of the cluster share at the same path, or a "
        "catalog whose tables are in an object store (--catalog)"
    )
    return LakeError(
        f"The executors of Spark do not share the storage of the lake {lake!r} ({folder}): for "
        f"{_executors_named(problems)}, {problems[0][1]}",
        step,
    )


def _executors_named(problems: Sequence[tuple[str, str | None]]) -> str:
    """The executors that have the first of these problems."""
    hosts = sorted({host for host, problem in problems if problem == problems[0][1]})
    if len(hosts) == 1:
        return f"the executor on {hosts[0]}"
    return f"each executor on {', '.join(hosts)}"


# --- all executors --------------------------------------------------------------------------------


def _answers(
    spark: SparkSession, run: Callable[[], list[Answer]]
) -> tuple[list[Answer], frozenset[str]]:
    """At least one answer of each executor, and the ids of these executors; or a problem."""
    answers: list[Answer] = []
    for _ in range(_ROUNDS):
        before = executors_of(spark)
        fresh = run()
        answers += fresh
        executors = executors_of(spark)
        answered = {answer.executor for answer in fresh}
        # Where executors came or went meanwhile, the answers may be of others.
        is_complete = executors == before and len(answered) >= len(executors)
        if is_complete or any(answer.problem for answer in fresh):
            return answers, executors
    raise LakeError(
        "Not every executor of Spark has answered the probe: "
        f"{len(answered)} of {len(executors)} have",
        "Start the mirror again when every executor has a free core",
    )


def _tasks(spark: SparkSession) -> int:
    """More tiny tasks than there are slots, so that Spark gives some to every executor."""
    return _TASKS_PER_SLOT * spark.sparkContext.defaultParallelism


def _run(spark: SparkSession, work: Any, schema: str) -> list[Any]:
    tasks = _tasks(spark)
    with _watching(spark):
        return spark.range(0, tasks, 1, tasks).mapInArrow(work.__call__, schema).collect()


def executors_of(spark: SparkSession) -> frozenset[str]:
    """The ids of the executors that the session has now."""
    context: Any = spark.sparkContext._jsc.sc()
    return frozenset(str(context.getExecutorIds().mkString(" ")).split())


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return store_problem(error) or (os.strerror(number) if number else str(error))
