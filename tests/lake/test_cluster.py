"""A lake in a local folder with a real Spark cluster: used if shared by all machines, else refused.

A worker in a mount namespace of its own, with an empty file system over the lake's parent folder,
is like another machine.
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.support.kafka import free_port
from tidegate.cli.app import commands

ROWS = 50
SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).resolve().parents[2] / "src"
START_SECONDS = 60
RUN_SECONDS = 240
OWN_MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'


@contextmanager
def running(command, log):
    """A process of Spark's that is stopped by its id."""
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
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

    def mirror(self, capture, lake, *options):
        """Runs `tidegate mirror` with executors of the cluster."""
        settings = {
            "spark.pyspark.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": str(SOURCE),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "768m",
            "spark.sql.shuffle.partitions": "2",
        }
        chosen = [f"--spark-conf={name}={value}" for name, value in settings.items()]
        return subprocess.run(
            [sys.executable, "-m", "tidegate.cli", "mirror", str(capture), "--lake", str(lake)]
            + ["--once", "--master", self.master, *chosen, *options],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env=os.environ | {"PYTHONPATH": str(SOURCE), "SPARK_LOCAL_IP": "127.0.0.1"},
        )


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


@pytest.fixture(scope="module")
def shared(cluster, capture, lakes):
    """A lake that the cluster has made in a folder that its only worker shares."""
    lake = lakes / "shared"
    return lake, cluster.mirror(capture, lake)


@pytest.fixture
def other_machine(cluster, lakes):
    mount = ["unshare", "-m", "sh", "-c", OWN_MOUNT, str(lakes), "true"]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting in a namespace of its own is not permitted")
    with cluster.worker("other", hidden=lakes):
        yield


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_that_all_executors_share_is_mirrored_into(spark, shared):
    lake, run = shared
    assert run.returncode == 0, run.stderr
    assert not list(lake.glob("probe-*"))
    verify = ["verify", "--lake", str(lake), "--workload", "bank", "--rows", str(ROWS)]
    assert commands.main(verify, standalone_mode=False) == 0


@pytest.mark.parametrize("format_name", ["iceberg", "delta"])
def test_a_folder_that_one_executor_does_not_share_is_refused(
    cluster, capture, lakes, other_machine, format_name
):
    run = cluster.mirror(capture, lakes / "parent" / format_name, "--format", format_name)
    print(run.stderr)
    assert run.returncode == 2
    assert f"on {socket.gethostname()}, it cannot read a file that the driver wrote" in run.stderr
    assert "--catalog" in run.stderr
    assert not (lakes / "parent").exists()
