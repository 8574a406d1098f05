"""A lake in a local folder with a real Spark cluster: used if shared by all machines, else refused.

A worker in a mount namespace of its own, with an empty file system over the lake's parent folder,
is like another machine.
"""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

from tests.support.kafka import free_port
from tidegate.cli.app import commands
from tidegate.lake.iceberg import CATALOG_FILE
from tidegate.lake.lock import LOCK
from tidegate.lake.probe import FOLDER

# Four JVMs on a machine with two cores take more than a minute.
pytestmark = pytest.mark.skipif(
    not os.environ.get("TIDEGATE_ALL"), reason="a cluster takes too long for every day"
)
ROWS = 50
SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).resolve().parents[2] / "src"
START_SECONDS = 60
RUN_SECONDS = 240
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
OWN_MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'


@contextmanager
def running(command, log):
    """A process of Spark's that is stopped by its id."""
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(condition, process, log):
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, Path(log).read_text()
        assert time.monotonic() < deadline, Path(log).read_text()
        time.sleep(0.1)


def spark_class(name, *arguments):
    return [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


class Cluster:
    """A standalone master; workers come and go."""

    def __init__(self, folder, port):
        self.folder = folder
        self.master = f"spark://127.0.0.1:{port}"

    @contextmanager
    def worker(self, name, *, hidden=None):
        """A worker with one core; it does not see what is below the folder `hidden`."""
        command = spark_class(
            "worker.Worker",
            *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
            *("--work-dir", str(self.folder / name), self.master),
        )
        if hidden is not None:
            command = ["unshare", "-m", "sh", "-c", OWN_MOUNT, str(hidden), *command]
        log = self.folder / f"{name}.log"
        with running(command, log) as process:
            wait_for(lambda: b"Successfully registered" in log.read_bytes(), process, log)
            yield

    def run(self, workers, *commands):
        """Runs commands of Tidegate in one session that begins when all workers have joined."""
        settings = {
            "spark.cores.max": str(workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_SECONDS}s",
            "spark.executorEnv.PYTHONPATH": str(SOURCE),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "768m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.sql.shuffle.partitions": "2",
        }
        given = [self.master, json.dumps(settings), json.dumps(commands)]
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


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    command = spark_class(
        "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    log = folder / "master.log"
    with running(command, log) as process:
        wait_for(lambda: is_listening(port), process, log)
        cluster = Cluster(folder, port)
        with cluster.worker("worker"):
            yield cluster


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
    (ended,) = cluster.run(1, mirror(capture, lake))
    assert ended.code == 0, ended.said
    return lake


@pytest.fixture(scope="module")
def refused(cluster, capture, lakes, shared):
    """Two runs with a second worker that does not share the folder: an old lake, a new one."""
    mount = ["unshare", "-m", "sh", "-c", OWN_MOUNT, str(lakes), "true"]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting in a namespace of its own is not permitted")
    before = contents(shared)
    with cluster.worker("other", hidden=lakes):
        old, new = cluster.run(
            2,
            mirror(capture, shared),
            mirror(capture, lakes / "parent" / "new", "--format", "delta"),
        )
    return old, new, before


def contents(folder):
    """The files of a lake, and what its catalog says, which SQLite may write in another form.

    The lock has the process id of the last mirror.
    """
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as catalog:
        tables = list(catalog.iterdump())
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    others = [each for each in files if each.name != LOCK and CATALOG_FILE not in each.name]
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
    old, _, before = refused
    assert_refused(old)
    assert contents(shared) == before


def test_no_lake_is_made_in_a_folder_that_one_executor_does_not_share(refused, lakes):
    _, new, _ = refused
    assert_refused(new)
    assert not (lakes / "parent").exists()
