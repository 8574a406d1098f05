"""A Spark standalone cluster on loopback: a master, and workers that come and go.

A worker in a mount namespace of its own, with an empty file system over a folder, is like another
machine: it does not see what the driver has there. Processes are stopped by their ids.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.processes import START_SECONDS, ServerProcess, free_port, is_listening

SPARK_HOME = Path(pyspark.__file__).parent
OWN_MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'
ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_NO_DAEMONIZE": "1",
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
}


def may_hide(folder: Path) -> bool:
    """Whether a process here may have an empty file system over a folder, for itself alone."""
    tried = subprocess.run(_hiding(folder, ["true"]), capture_output=True)
    return tried.returncode == 0


def _hiding(folder: Path, command: list[str]) -> list[str]:
    return ["unshare", "-m", "sh", "-c", OWN_MOUNT, str(folder), *command]


def _spark_class(name: str, *arguments: str) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


class Cluster:
    """A standalone master; `worker` adds a worker for a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        host = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        self.process = ServerProcess(
            "Spark's master",
            _spark_class("master.Master", *host),
            folder / "master.log",
            environment=ENVIRONMENT,
        )

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process.start(lambda: is_listening(self.port))

    @contextmanager
    def worker(
        self,
        name: str,
        *,
        hidden: Path | None = None,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[ServerProcess]:
        """A worker that has joined; it sees an empty folder in place of `hidden`."""
        size = ("--cores", str(cores), "--memory", memory, "--webui-port", "0")
        place = ("--host", "127.0.0.1", "--work-dir", str(self.folder / name), self.master)
        command = _spark_class("worker.Worker", *size, *place)
        if hidden is not None:
            command = _hiding(hidden, command)
        log = self.folder / f"{name}.log"
        settings = {**ENVIRONMENT, **(environment or {})}
        process = ServerProcess(f"Spark's worker {name}", command, log, environment=settings)
        process.start(lambda: b"Successfully registered" in log.read_bytes())
        try:
            yield process
        finally:
            process.stop()

    def whole(self, workers: int) -> dict[str, str]:
        """The settings of an application that begins when so many workers have joined."""
        return {
            "spark.cores.max": str(workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_SECONDS}s",
            "spark.driver.host": "127.0.0.1",
        }


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master without workers; logs and work folders are kept below `folder`."""
    running = Cluster(folder)
    running.start()
    try:
        yield running
    finally:
        running.process.stop()
