"""A real PostgreSQL for tests, on loopback: the machine's, or Debian's packages unpacked.

Where neither can be had, `MissingServer` says why. PostgreSQL does not run as root: a root user's
server runs as `postgres`, or as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import debian
from tests.support.debian import MissingServer
from tests.support.processes import START_SECONDS, ServerProcess, free_port, is_listening

FOLDER = debian.BUILD / "postgresql"
USER, PASSWORD, DATABASE = "iceberg", "s3cret", "postgres"


def programs() -> Path:
    """The folder of `initdb` and `postgres`; their packages are fetched now if need be."""
    here = _newest(Path("/"))
    if here is not None:
        return here
    debian.unpack("PostgreSQL", FOLDER, lambda: debian.missing_packages("postgresql"))
    unpacked = _newest(FOLDER)
    if unpacked is None:
        raise MissingServer(f"The packages of PostgreSQL have no server: {FOLDER}")
    return unpacked


def _newest(root: Path) -> Path | None:
    """The programs of the newest version below a root; those on the PATH may be wrappers."""
    versions = (root / "usr/lib/postgresql").glob("*/bin/postgres")
    order = sorted(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])
    return order[-1].parent if order else None


def _user() -> int | None:
    """The user to run as; None: as we are."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise MissingServer("PostgreSQL does not run as root, and there is no user to run it as")


class Server:
    """A running server with one user that may do everything."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        place, user = programs(), _user()
        environment = {} if Path("/usr") in place.parents else debian.libraries(FOLDER)
        data, password = folder / "data", folder / "password"
        password.write_text(PASSWORD)
        data.mkdir(mode=0o700)
        if user is not None:
            for path in (folder, data, password):
                os.chown(path, user, -1)
        access = ["--auth=scram-sha-256", f"--username={USER}", f"--pwfile={password}"]
        made = subprocess.run(
            [place / "initdb", f"--pgdata={data}", "--no-sync", "--encoding=UTF8", *access],
            env={**os.environ, **environment, "LC_ALL": "C"},
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if made.returncode != 0:
            raise RuntimeError(f"PostgreSQL cannot be set up:\n{made.stderr[-2000:]}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = ServerProcess(
            "PostgreSQL",
            [str(place / "postgres"), "-D", str(data), *options],
            folder / "server.log",
            environment=environment,
            user=user,
            stop_by=signal.SIGINT,  # does not wait for clients to go
        )

    def start(self) -> None:
        log = self.process.log
        ready = b"ready to accept connections"
        self.process.start(lambda: is_listening(self.port) and ready in log.read_bytes())

    @property
    def jdbc_uri(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    def spark(self, warehouse: str) -> dict[str, str]:
        """What Iceberg's JDBC catalog in it is told, without `spark.sql.catalog.NAME.`."""
        return {
            "type": "jdbc",
            "uri": self.jdbc_uri,
            "jdbc.user": USER,
            "jdbc.password": PASSWORD,
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
        }


@contextmanager
def server() -> Iterator[Server]:
    """A server of its own with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-postgresql-"))
    try:
        running = Server(folder)
        running.start()
        try:
            yield running
        finally:
            running.process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
