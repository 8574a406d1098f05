"""A real Spark cluster: executors that cannot do the work are refused, killed ones are survived.

A worker in a mount namespace of its own, with an empty file system over the lake's parent folder,
is like another machine.
"""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lake.test_sources import WorkloadFeed
from tests.lake.test_submit import CATALOG, assert_mirrored
from tests.support.cluster import cluster as spark_cluster
from tests.support.cluster import may_hide
from tests.support.processes import free_port
from tests.support.rest_catalog import rest_catalog
from tidegate.cli.app import commands
from tidegate.lake import Lake, LakePlace
from tidegate.lake.formats.iceberg import CATALOG_FILE
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.probe import FOLDER

# Four JVMs on a machine with two cores take more than a minute.
pytestmark = pytest.mark.skipif(
    not os.environ.get("TIDEGATE_ALL"), reason="a cluster takes too long for every day"
)
ROWS = 50
SOURCE = Path(__file__).resolve().parents[2] / "src"
RUN_SECONDS = 400
DRIVER = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from tidegate.cli.app import main
from tidegate.spark import session

master, settings, commands = sys.argv[1], *map(json.loads, sys.argv[2:])
spark = session("cluster", master=master, settings=settings, libraries=("iceberg", "delta"))
for arguments in commands:
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            main(arguments)
    except SystemExit as end:
        print(json.dumps([end.code, said.getvalue()]))
spark.stop()
"""


def session_settings(cluster, workers):
    """The settings of a session that begins when all workers have joined."""
    return {
        **cluster.whole(workers),
        "spark.executorEnv.PYTHONPATH": str(SOURCE),
        "spark.driver.memory": "1g",
        "spark.executor.memory": "768m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
    }


def run(cluster, workers, *commands, **more):
    """Runs commands of Tidegate in one session that begins when all workers have joined."""
    settings = session_settings(cluster, workers) | more
    given = [cluster.master, json.dumps(settings), json.dumps(commands)]
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, *given],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env=os.environ
        | {"PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable}
        | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert run.returncode == 0, run.stderr
    return [Ended(*json.loads(line)) for line in run.stdout.splitlines()]


class Ended(NamedTuple):
    code: int
    said: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder) as running, running.worker("worker"):
        yield running


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    path = tmp_path_factory.mktemp("captures") / "bank.parquet"
    commands.main(["generate", "bank", str(path), "--rows", str(ROWS)], standalone_mode=False)
    return path


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    return tmp_path_factory.mktemp("lakes")


def mirror(capture, lake, *options):
    return ["mirror", str(capture), "--lake", str(lake), "--once", *options]


@pytest.fixture(scope="module")
def shared(cluster, capture, lakes):
    """A lake that the cluster has made in a folder that its only worker shares."""
    lake = lakes / "shared"
    (ended,) = run(cluster, 1, mirror(capture, lake))
    assert ended.code == 0, ended.said
    return lake


@pytest.fixture(scope="module")
def refused(cluster, capture, lakes, shared):
    """Runs with a second worker that does not share the folder: an old lake, new ones."""
    if not may_hide(lakes):
        pytest.skip("mounting in a namespace of its own is not permitted")
    before = contents(shared)
    with cluster.worker("other", hidden=lakes):
        ended = run(
            cluster,
            2,
            mirror(capture, shared),
            mirror(capture, lakes / "parent" / "new", "--format", "delta"),
            mirror(capture, "s3://bucket/named", "--catalog", "named"),
            **{
                "spark.sql.catalog.named": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.named.type": "hadoop",
                "spark.sql.catalog.named.warehouse": str(lakes / "warehouse"),
            },
        )
    return ended, before


def contents(folder):
    """The files of a lake, and what its catalog says, which SQLite may write in another form."""
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as catalog:
        tables = list(catalog.iterdump())
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    others = [each for each in files if CATALOG_FILE not in each.name]
    return tables, {path: path.read_bytes() for path in others}


def assert_refused(ended):
    assert ended.code == 2, ended.said
    assert f"on {socket.gethostname()}, it cannot read a file that the driver wrote" in ended.said
    assert "--catalog" in ended.said


def test_a_folder_that_all_executors_share_is_mirrored_into(spark, shared):
    assert not list(shared.glob(f"{FOLDER}*"))
    verify = ["verify", "--lake", str(shared), "--workload", "bank", "--rows", str(ROWS)]
    assert commands.main(verify, standalone_mode=False) == 0


def test_a_lake_that_one_executor_does_not_share_is_refused_and_stays_as_it_was(refused, shared):
    (old, _, _), before = refused
    assert_refused(old)
    assert contents(shared) == before


def test_no_lake_is_made_in_a_folder_that_one_executor_does_not_share(refused, lakes):
    (_, new, _), _ = refused
    assert_refused(new)
    assert not (lakes / "parent").exists()


def test_a_catalog_with_a_local_warehouse_that_one_executor_does_not_share_is_refused(
    refused, lakes
):
    (_, _, named), _ = refused
    assert_refused(named)
    assert not list((lakes / "warehouse").rglob("*.parquet"))
    assert not (lakes / "warehouse" / "_tidegate").exists()


# --- what a cluster can lack ----------------------------------------------------------------------


def another_python():
    """A Python of another minor version, if this machine has one."""
    beside = Path(sys.base_prefix).parent
    for minor in range(10, 15):
        name = f"python3.{minor}"
        found = [shutil.which(name), *map(str, beside.glob(f"*/bin/{name}"))]
        for program in filter(None, found if minor != sys.version_info.minor else []):
            if subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
                return program
    pytest.skip("there is no Python of another version")


def bare_python():
    """The driver's Python without any package."""
    return str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))


MISSING = {
    "another Python": (
        lambda: ({}, {"PYSPARK_PYTHON": another_python()}),
        ["executor 0 on 127.0.0.1 cannot run", "different version", "PYSPARK_PYTHON"],
    ),
    "no Tidegate": (
        lambda: ({"spark.executorEnv.PYTHONPATH": "."}, {"PYSPARK_PYTHON": bare_python()}),
        [f"on {socket.gethostname()} cannot run Tidegate: it cannot import", "Install the driver"],
    ),
    "no free cores": (
        lambda: ({"spark.executor.memory": "64g"}, {}),
        ["has started no executor in 20 s", "spark.executor.memory"],
    ),
    "no master": (
        lambda: ({"spark.master": f"spark://127.0.0.1:{free_port()}"}, {}),
        ["no master answers at spark://127.0.0.1:", "--master"],
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_the_cluster_lacks_is_said_and_nothing_is_made(cluster, capture, lakes, name):
    made, words = MISSING[name]
    changed, environment = made()
    settings = session_settings(cluster, 1) | {"spark.master": cluster.master}
    settings.pop("spark.scheduler.maxRegisteredResourcesWaitingTime")
    options = [
        part for each in (settings | changed).items() for part in ("--spark-conf", "=".join(each))
    ]
    lake = lakes / "lacking"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", *mirror(capture, lake), *options],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env=driver_environment() | environment,
    )
    print(f"{name}: {time.monotonic() - started:.1f} s: {done.stderr}")
    assert done.returncode == 2, done.stderr
    said = done.stderr.splitlines()[0]
    for word in words:
        assert word in said
    assert not lake.exists()


# --- what is killed on the way --------------------------------------------------------------------

KILLED_ROWS = 20_000
SNAPSHOTS = 4
WATCHED = """
import json, sys, threading, time
from pyspark import SparkContext
from tidegate.cli.app import main

def watch():
    while True:
        context = SparkContext._active_spark_context
        if getattr(context, "_jsc", None) is not None:
            tracker = context.statusTracker()
            for number in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(number)
                if stage is not None and stage.numActiveTasks:
                    print(json.dumps({"event": "stage", "name": stage.name}), flush=True)
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
main(sys.argv[1:])
"""


def driver_environment():
    return os.environ | {
        "PYTHONPATH": str(SOURCE),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Driver:
    """A mirror on a cluster, in a process group of its own."""

    def __init__(self, cluster, arguments, workers=2, **changed):
        settings = session_settings(cluster, workers) | {"spark.master": cluster.master} | changed
        options = [part for each in settings.items() for part in ("--spark-conf", "=".join(each))]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, *arguments, *options, "--output", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=driver_environment(),
            start_new_session=True,
        )

    def reaches(self, phase):
        """Reads on until a task runs for a phase; when tables are there already, if it applies.

        A round's files are collected; a MERGE has jobs under many names, of which none collects.
        """
        at, steps = "", 0
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "progress":
                at, steps = event["phase"], event["snapshots"]
            is_there = at == phase and (phase == "reading" or steps)
            collects = event["event"] == "stage" and event["name"].startswith("collect")
            if event["event"] == "stage" and is_there and collects == (phase == "reading"):
                return
        pytest.fail(f"it ended before: {self.process.stderr.read()}")

    def end(self):
        """Its exit code, once all its processes have ended."""
        printed, said = self.process.communicate(timeout=RUN_SECONDS)
        deadline = time.monotonic() + 60
        while members(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.process.returncode, printed[-500:] + said


def members(group):
    """The processes of a group, beside the dead."""
    found = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True).stdout
    return [
        line for line in found.splitlines() if line.split()[0] == str(group) and "Z" not in line
    ]


def kill_executor(driver, workers):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(workers[0].pid)], capture_output=True, text=True
    )
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    assert found.stdout.split()


def kill_worker(driver, workers):
    os.kill(workers[0].pid, signal.SIGKILL)


def kill_driver(driver, workers):
    os.kill(driver.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def killed_feed(tmp_path_factory):
    return WorkloadFeed("bank", KILLED_ROWS, tmp_path_factory.mktemp("killed") / "feed.parquet")


@pytest.fixture(scope="module")
def store(object_store):
    """A catalog of its own: what a killed run leaves is nobody else's."""
    object_store.create_bucket("killed")
    with rest_catalog(object_store, "s3://killed/tables") as running:
        yield running


@pytest.mark.parametrize("kill", [kill_executor, kill_worker, kill_driver])
@pytest.mark.parametrize("phase", ["reading", "applying"])
def test_a_run_or_its_restart_ends_with_equal_tables(
    spark, tmp_path, store, killed_feed, kill, phase
):
    prefix = f"{kill.__name__}_{phase}_"
    folder = f"s3://killed/{prefix}"
    arguments = ["mirror", str(killed_feed.path), "--lake", folder, "--catalog", "prod", "--once"]
    arguments += ["--prefix", prefix]
    arguments += ["--max-step-seconds", str(killed_feed.step_ms(SNAPSHOTS) / 1000)]
    catalog = {CATALOG: "org.apache.iceberg.spark.SparkCatalog"}
    catalog |= {f"{CATALOG}.{name}": value for name, value in store.spark().items()}
    for name, value in catalog.items():
        arguments += ["--spark-conf", f"{name}={value}"]
    with ExitStack() as stack:
        cluster = stack.enter_context(spark_cluster(tmp_path))
        workers = [stack.enter_context(cluster.worker(name)) for name in ("one", "two")]
        driver = Driver(cluster, arguments)
        driver.reaches(phase)
        kill(driver, workers)
        code, said = driver.end()
        if code != 0:
            if kill is kill_worker:
                stack.enter_context(cluster.worker("three"))
            code, said = Driver(cluster, arguments).end()
        assert code == 0, said
    assert_mirrored(spark, store, folder, killed_feed, prefix=prefix, snapshots=SNAPSHOTS)


def test_an_executor_that_joins_on_the_way_must_prove_itself_too(spark, tmp_path, killed_feed):
    lakes = tmp_path / "lakes"
    lakes.mkdir()
    if not may_hide(lakes):
        pytest.skip("mounting in a namespace of its own is not permitted")
    seconds = killed_feed.step_ms(60) / 1000
    arguments = mirror(killed_feed.path, lakes / "lake", "--max-step-seconds", str(seconds))
    with ExitStack() as stack:
        cluster = stack.enter_context(spark_cluster(tmp_path))
        stack.enter_context(cluster.worker("one"))
        driver = Driver(cluster, arguments, 1, **{"spark.cores.max": "2"})
        driver.reaches("applying")
        with cluster.worker("other", hidden=lakes):
            code, said = driver.end()
        assert code == 2, said
        assert "it cannot read a file that the driver wrote" in said
        code, said = Driver(cluster, arguments, 1).end()
        assert code == 0, said
    lake = Lake(spark, LakePlace(str(lakes / "lake")))
    killed_feed.assert_mirrored(lake, Mirror(lake), 60)
