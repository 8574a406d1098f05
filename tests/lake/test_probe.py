"""What a probe of executors concludes from what they say and see; without a cluster."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate import __version__
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.job import executor_check
from tidegate.lake.job import probe as probing
from tidegate.lake.job.probe import (
    Answer,
    ExecutorProbe,
    Probe,
    not_shared,
    prove,
    unusable_python,
)
from tidegate.lake.job.run import READING, disk_full, spark_failure
from tidegate.lake.storage.file_store import FileStore
from tidegate.model import LakeError

LAKE = "lake"


def spark_of(master):
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


class Log:
    """A log whose files are in a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def writer(self):
        return SimpleNamespace(folder=self.folder, store=FileStore())


@pytest.fixture
def probe(tmp_path):
    (tmp_path / "driver").write_text("token")
    return Probe(str(tmp_path), "token")


@pytest.fixture
def executors(monkeypatch):
    """Lets tests say what executors there are, and how each looks at the folder."""

    def made(*answers):
        ids = frozenset(map(str, range(len(answers))))

        def run(spark, work, schema):
            works.append(work)
            return [answer(work) for answer in answers] if isinstance(work, Probe) else []

        monkeypatch.setattr(probing, "executors_of", lambda spark: ids)
        monkeypatch.setattr(probing, "_run", run)
        monkeypatch.setattr(probing, "check_environment", lambda spark: None)
        return ids

    works = made.works = []
    return made


def sharing(name):
    return lambda work: work.ask()._replace(executor=name)


def elsewhere(work):
    """An executor whose files the driver does not see."""
    return Answer("far", "e2", "no-such-file")


def blind(work):
    """An executor on a machine without the folder."""
    return Probe(f"{work.folder}-of-another-machine", "token").ask()._replace(host="far")


# --- one executor ---------------------------------------------------------------------------------


def test_an_executor_that_shares_the_folder_reads_and_writes_there(probe):
    answer = probe.ask()
    assert (answer.problem, probe.problem_of(answer)) == (None, None)
    assert answer.file is not None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Path.unlink, "it cannot read a file that the driver wrote there (No such file"),
        (lambda path: path.write_text("other"), "the driver wrote there has another content"),
        (lambda path: path.write_bytes(b"\xff"), "the driver wrote there has another content"),
    ],
)
def test_an_executor_that_does_not_see_the_drivers_file_says_so_and_writes_none(
    probe, change, problem
):
    driver = Path(probe.folder, "driver")
    change(driver)
    answer = probe.ask()
    assert problem in probe.problem_of(answer)
    assert answer.file is None
    assert set(Path(probe.folder).iterdir()) <= {driver}


def test_an_executor_that_cannot_write_says_so(probe, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Probe, "write", refuse)
    assert probe.ask().problem == "it cannot write a file there (Permission denied)"


def test_the_driver_must_see_what_an_executor_wrote(probe):
    answer = probe.ask()
    Path(probe.folder, answer.file).write_text("other")
    assert "has another content for the driver" in probe.problem_of(answer)
    Path(probe.folder, answer.file).unlink()
    assert "the driver cannot read a file that it wrote" in probe.problem_of(answer)


# --- all of them ----------------------------------------------------------------------------------


def test_a_folder_that_every_executor_shares_is_proven_and_left_as_it_was(executors, tmp_path):
    ids = executors(sharing("e1"), sharing("e2"))
    assert prove(spark_of("spark://m:7077"), Log(tmp_path), LAKE) == ids
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [elsewhere, blind])
def test_one_executor_that_does_not_share_the_folder_is_enough(executors, tmp_path, bad):
    executors(sharing("e1"), bad)
    with pytest.raises(LakeError, match=r"executor on far, .* \(--catalog\)\.$"):
        prove(spark_of("spark://m:7077"), Log(tmp_path / "new"), LAKE)
    assert not list(tmp_path.iterdir())
    asked, removal = executors.works
    assert removal.probe == asked  # what an executor wrote on a disk of its own goes too


def test_an_executor_that_never_answers_is_not_taken_for_one_that_shares(executors, tmp_path):
    executors(sharing("e1"), sharing("e1"))
    with pytest.raises(LakeError, match="1 of 2 have"):
        prove(spark_of("spark://m:7077"), Log(tmp_path), LAKE)
    assert not list(tmp_path.iterdir())


def test_answers_do_not_count_while_executors_come_and_go(executors, tmp_path, monkeypatch):
    executors(sharing("e1"))
    seen = iter([(), ("0",), ("0",), ("1",), ("1",), ("1",)])
    monkeypatch.setattr(probing, "executors_of", lambda spark: frozenset(next(seen)))
    assert prove(spark_of("spark://m:7077"), Log(tmp_path), LAKE) == {"1"}
    assert len(executors.works) == 3


def test_an_executor_that_joins_later_must_prove_it_too(executors, tmp_path):
    executors(sharing("e1"))
    shared = ExecutorProbe(spark_of("spark://m:7077"), Log(tmp_path), LAKE)
    shared.check()
    executors(sharing("e1"), blind)
    with pytest.raises(LakeError, match="do not share"):
        shared.check()


def test_executors_that_have_proved_it_are_not_asked_again(executors, tmp_path, monkeypatch):
    executors(sharing("e1"))
    shared = ExecutorProbe(spark_of("spark://m:7077"), Log(f"file://{tmp_path}"), LAKE)
    shared.check()
    monkeypatch.setattr(probing, "_run", lambda *_: pytest.fail("asked again"))
    shared.check()


# --- when it is needed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "needed"),
    [
        ("local", False),
        ("local[4]", False),
        ("local[*]", False),
        ("local[2, 3]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://m:7077", True),
        ("yarn", True),
        ("k8s://https://m:6443", True),
    ],
)
def test_only_executors_outside_of_the_driver_must_prove_it(executors, tmp_path, master, needed):
    executors(blind)
    shared = ExecutorProbe(spark_of(master), Log(tmp_path), LAKE)
    missing = str(tmp_path / "missing.parquet")
    if not needed:
        shared.check()
        shared.check_files([missing])
        return
    with pytest.raises(LakeError, match="do not share"):
        shared.check()
    with pytest.raises(LakeError, match=r"the driver cannot read the file '.*missing\.parquet'"):
        shared.check_files([missing])
    assert "missing.parquet" in str(shared.refusal)


def test_files_in_an_object_store_are_not_looked_for_on_the_disk(tmp_path):
    shared = ExecutorProbe(spark_of("spark://m:7077"), Log("s3://bucket/log"), LAKE)
    shared.check_files(["s3://bucket/log/a.parquet"])


# --- what an executor has -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "modules", "problem"),
    [
        (__version__, ["json"], None),
        ("9.9", [], f"it has Tidegate {__version__}, and the driver has 9.9"),
        (__version__, ["no_such"], "it cannot import no_such (No module named 'no_such'; its Pyth"),
    ],
)
def test_an_executor_says_what_it_lacks(version, modules, problem):
    ((host, executor, told),) = executor_check.environment(version, modules, [1])
    assert host
    assert executor
    assert told == problem if problem is None else told.startswith(problem)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 20), ("300s", 300), ("30000", 30), ("2min", 120), ("x", 20)]
)
def test_an_application_waits_for_executors_as_long_as_spark_is_told_to(text, seconds):
    assert probing._waiting_seconds(text, "spark://m:7077") == seconds
    assert probing._waiting_seconds(None, "yarn") == 120


# --- sentences ------------------------------------------------------------------------------------


def test_the_refusal_names_every_host_with_the_problem_and_the_next_step():
    problems = [("b", "it is blind"), ("a", "it is blind"), ("c", "it is deaf")]
    assert str(not_shared("lake", "/log", problems)) == (
        "The executors of Spark do not share the storage of the lake 'lake' (/log): for each "
        "executor on a, b, it is blind. Give a --lake folder that all machines of the cluster share at the "
        "same path, or a catalog whose tables are in an object store (--catalog)."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "File x\nModuleNotFoundError: No module named 'tidegate'\n\n\tat org.apache",
            "(No module named 'tidegate')",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions.\nmore",
            "Python in worker has different version: 3.9 than that in driver: 3.11",
        ),
        ('java.io.IOException: Cannot run program "py": error=2', 'Cannot run program "py"'),
    ],
)
def test_executors_that_cannot_run_tidegate_are_told_in_a_sentence(text, reason):
    sentence = str(unusable_python(Exception(text)))
    assert reason in sentence
    assert sentence.endswith("name that Python in the variable PYSPARK_PYTHON.")
    assert "\n" not in sentence


def test_the_executor_is_named_that_spark_names():
    text = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
        "failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 12): "
        "org.apache.spark.api.python.PythonException: No module named 'pyspark'"
    )
    assert "the executor 12 on 10.0.0.7 cannot run" in str(unusable_python(Exception(text)))


def test_another_failure_of_executors_is_not_taken_for_a_missing_python():
    assert unusable_python(Exception("Connection refused")) is None


@pytest.mark.parametrize("text", ["No space left on device", "Connection refused"])
def test_a_failure_of_spark_promises_nothing_that_is_not_known(text):
    error = Exception(text)
    for failure in (
        spark_failure(READING, error, LakePlace(LAKE)),
        disk_full(READING, error, "lake"),
    ):
        if failure is not None:
            assert "lost" not in str(failure)
            assert str(failure).endswith("start the mirror again.")
