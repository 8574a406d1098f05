"""Proves that the local folder of a lake is one folder for the driver and for every executor.

Executors on other machines would write data files to their own disks, and the driver would commit
files that nobody can read. So with a cluster each executor reads a file that the driver wrote, and
the driver reads one that each executor wrote. Nothing that the probe writes stays.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.lake.failures import causes
from tidegate.lake.format import LakePlace
from tidegate.lake.iceberg import local_folder
from tidegate.lake.lock import unwritable
from tidegate.model import LakeError, SparkError
from tidegate.spark.sessions import local_cores

FOLDER = "probe-"
"""How the name of the folder begins that a probe makes in the folder of a lake."""
_DRIVER_FILE = "driver"
_TASKS_PER_SLOT = 4
_ROUNDS = 20
"""How often to ask at most while executors join or leave."""
_ANSWER_TYPE = "host string, executor string, file string, problem string"


class Answer(NamedTuple):
    """What an executor says; `file` is what it wrote, `problem` why it could not."""

    host: str
    executor: str
    file: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What Spark sends to its Python workers; that it arrives proves that they have Tidegate."""

    folder: str
    token: str

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
        # The block manager's folders are named at random, so no two executors have the same.
        executor = os.environ.get("SPARK_LOCAL_DIRS") or str(os.getppid())
        host = socket.gethostname()
        try:
            content = Path(self.folder, _DRIVER_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = f"it cannot read a file that the driver wrote there ({_reason(error)})"
            return Answer(host, executor, problem=reason)
        if content != self.token:
            reason = "a file that the driver wrote there has another content for it"
            return Answer(host, executor, problem=reason)
        name = uuid.uuid4().hex
        try:
            Path(self.folder, name).write_text(self.token, encoding="utf-8")
        except OSError as error:
            reason = f"it cannot write a file there ({_reason(error)})"
            return Answer(host, executor, problem=reason)
        return Answer(host, executor, name)

    def problem_of(self, answer: Answer) -> str | None:
        """What an executor's answer shows to be wrong, for the driver; None if nothing is."""
        if answer.file is None:
            return answer.problem
        try:
            content = Path(self.folder, answer.file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            return f"the driver cannot read a file that it wrote there ({_reason(error)})"
        if content != self.token:
            return "a file that it wrote there has another content for the driver"
        return None


@dataclass(frozen=True, slots=True)
class _Removal:
    """Removes a probe's folder where a worker runs: only there, if the folder is not shared."""

    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shutil.rmtree(self.folder, ignore_errors=True)
        yield from batches


class SharedFolder:
    """The local folder of a lake, which every executor that works on the lake must share.

    Executors may join at any time: `check` is for before each step, and does nothing while the
    executors are those that have proved it. Both checks do nothing where Spark is local.
    """

    def __init__(self, spark: SparkSession, place: LakePlace, format_name: str) -> None:
        self.refusal: LakeError | None = None
        """What `check_files` has raised: it is lost on the way through a streaming query."""
        self._spark = spark
        self._place = place
        is_local = local_cores(spark.sparkContext.master or "") is not None
        self._needs_proof = not is_local and is_in_folder(place, format_name)
        self._proven: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raises LakeError where an executor does not share the folder."""
        if not self._needs_proof:
            return
        executors = _executors(self._spark)
        if not executors or not executors <= self._proven:
            self._proven = prove(self._spark, local_folder(self._place.folder))

    def check_files(self, paths: Iterable[str]) -> None:
        """Raises LakeError where files that executors have written are not there for the driver."""
        if not self._needs_proof:
            return
        for path in paths:
            if not Path(path).is_file():
                problem = f"the driver cannot read the file {path!r} that it wrote"
                self.refusal = not_shared(self._place.folder, [("another machine", problem)])
                raise self.refusal


def prove(spark: SparkSession, folder: Path) -> frozenset[str]:
    """Has every executor prove that it shares a folder; their ids, or LakeError if one does not."""
    with _probing(folder) as probe:
        answers, executors = _answers(spark, probe)
        reports = [(answer.host, probe.problem_of(answer)) for answer in answers]
        problems = [(host, problem) for host, problem in reports if problem is not None]
        if problems:
            refusal = not_shared(str(folder), problems)
            try:
                _run(spark, _Removal(probe.folder), "id long")
            except (PySparkException, Py4JJavaError, SparkError) as error:
                refusal.add_note(f"Executors may still have {probe.folder}: {error}")
            raise refusal
        return executors


def is_in_folder(place: LakePlace, format_name: str) -> bool:
    """Whether the data files of a lake are in its own folder, not where a catalog puts them."""
    return place.catalog is None or format_name == "delta"


def not_shared(folder: str, problems: Sequence[tuple[str, str]]) -> LakeError:
    """What to say of hosts that have problems with the folder; the first problem is told."""
    first = problems[0][1]
    hosts = sorted({host for host, problem in problems if problem == first})
    executors = (
        f"the executor on {hosts[0]}" if len(hosts) == 1 else f"each executor on {', '.join(hosts)}"
    )
    return LakeError(
        f"The executors of Spark do not share the folder of the lake {folder!r}: for {executors}, "
        f"{first}",
        "Give a --lake folder that all machines of the cluster share at the same path, or a "
        "catalog whose tables are in an object store (--catalog)",
    )


@contextmanager
def _probing(folder: Path) -> Iterator[Probe]:
    """A probe with the driver's file in a new folder of the lake's, removed in the end."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    probe = Probe(str(folder / f"{FOLDER}{uuid.uuid4().hex}"), uuid.uuid4().hex)
    try:
        try:
            Path(probe.folder).mkdir(parents=True)
            Path(probe.folder, _DRIVER_FILE).write_text(probe.token, encoding="utf-8")
        except OSError as error:
            raise unwritable(folder, error) from error
        yield probe
    finally:
        shutil.rmtree(probe.folder, ignore_errors=True)
        for each in missing:
            if each.is_dir() and not any(each.iterdir()):
                each.rmdir()


def _answers(spark: SparkSession, probe: Probe) -> tuple[list[Answer], frozenset[str]]:
    """At least one answer of each executor, and the ids of these executors; or a problem."""
    answers: list[Answer] = []
    for _ in range(_ROUNDS):
        before = _executors(spark)
        fresh = [Answer(*row) for row in _run(spark, probe, _ANSWER_TYPE)]
        answers += fresh
        executors = _executors(spark)
        answered = {answer.executor for answer in fresh}
        # Where executors came or went meanwhile, the answers may be of others.
        is_complete = executors == before and len(answered) >= len(executors)
        if is_complete or any(answer.problem for answer in fresh):
            return answers, executors
    raise LakeError(
        "Not every executor of Spark has said whether it shares the folder of the lake: "
        f"{len(answered)} of {len(executors)} have",
        "Start the mirror again when every executor has a free core",
    )


def _run(spark: SparkSession, work: Any, schema: str) -> list[Any]:
    """Runs more tiny tasks than there are slots, so that Spark gives some to every executor."""
    tasks = _TASKS_PER_SLOT * spark.sparkContext.defaultParallelism
    try:
        return spark.range(0, tasks, 1, tasks).mapInArrow(work.__call__, schema).collect()
    except (PySparkException, Py4JJavaError) as error:
        unusable = unusable_python(error)
        if unusable is None:
            raise
        raise unusable from error


def _executors(spark: SparkSession) -> frozenset[str]:
    """The ids of the executors that the session has now."""
    context: Any = spark.sparkContext._jsc.sc()
    return frozenset(str(context.getExecutorIds().mkString(" ")).split())


_NO_PYTHON = re.compile(
    r"No module named '?[\w.]+'?|PYTHON_VERSION_MISMATCH\]?[^\n]*|Cannot run program [^\n]*"
)


def unusable_python(error: BaseException) -> SparkError | None:
    """What to say where executors have no Python that can run Tidegate; None for another error."""
    for text in causes(error):
        match = _NO_PYTHON.search(text)
        if match is not None:
            return SparkError(
                f"its executors cannot run Tidegate ({match[0].rstrip('.')})",
                "Install the driver's versions of Python and Tidegate on every machine of the "
                "cluster, and name that Python in the variable PYSPARK_PYTHON",
            )
    return None


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
