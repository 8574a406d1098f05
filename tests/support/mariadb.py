"""A real MariaDB for tests, on loopback: Debian's packages, unpacked but not installed.

The packages are fetched once (`apt-get download`) and kept in build/mariadb. Where that cannot be
done, a server that the machine has is used; where there is none, `MissingServer` says so. It is
stopped by its process id, also when the test run ends by an error.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kafka import free_port

PACKAGES = ("mariadb-server-core", "libaio1", "libnuma1", "liburing2")
USER, PASSWORD = "mirror", "s3cret/@:pass"
FOLDER = Path(__file__).parents[2] / "build" / "mariadb"
FETCH_SECONDS = 120
START_SECONDS = 60


class MissingServer(Exception):
    """There is no MariaDB here and none can be fetched; the text says why."""


@dataclass(frozen=True)
class Program:
    """A server that can be started: its executable, its files and its libraries."""

    executable: Path
    share: Path
    libraries: tuple[Path, ...] = ()


def program() -> Program:
    """The server of the machine, or that of the packages, which are fetched now if need be."""
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return Program(Path(found), _share(Path("/")))
    executable = FOLDER / "usr/sbin/mariadbd"
    if not executable.is_file():
        _fetch(FOLDER)
    libraries = {file.parent for file in FOLDER.rglob("*.so*")}
    return Program(executable, _share(FOLDER), tuple(sorted(libraries)))


def _share(root: Path) -> Path:
    for name in ("usr/share/mysql", "usr/share/mariadb"):
        if (root / name / "mysql_system_tables.sql").is_file():
            return root / name
    raise MissingServer(f"MariaDB's system tables are not under {root}")


def _fetch(root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingServer("MariaDB is not installed, and there is no apt-get to fetch it")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=root.parent, prefix=".mariadb-"))
    except OSError as error:
        raise MissingServer(f"There is no place for MariaDB's packages: {error}") from error
    try:
        _run(["apt-get", "-qq", "download", *PACKAGES], scratch)
        for package in sorted(scratch.glob("*.deb")):
            _run(["dpkg", "-x", str(package), "root"], scratch)
        (scratch / "root").rename(root)
    except (OSError, subprocess.SubprocessError) as error:
        if not root.is_dir():  # else another run was faster
            raise MissingServer(f"MariaDB's packages cannot be fetched: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_SECONDS)


class Server:
    """A running server with a user that may do everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._program = program()
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir()
        self._bootstrap()
        self.start()

    @property
    def uri(self) -> str:
        """As the setting `upstream` has it."""
        return f"mysql://{USER}:{PASSWORD.replace('/', '%2F').replace('@', '%40')}@127.0.0.1:{self.port}/"

    def _command(self) -> list[str]:
        share = self._program.share
        return [
            str(self._program.executable),
            "--no-defaults",
            f"--basedir={share.parents[1]}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            *(["--user=root"] if os.getuid() == 0 else []),
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=8M",
            "--innodb-flush-log-at-trx-commit=0",
            "--character-set-server=utf8mb4",
        ]

    def _environment(self) -> dict[str, str]:
        libraries = ":".join(map(str, self._program.libraries))
        return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)

    def _bootstrap(self) -> None:
        share = self._program.share
        parts = [
            "CREATE DATABASE mysql;\nUSE mysql;\n",
            *(
                (share / name).read_text(encoding="utf-8")
                for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
            ),
            "FLUSH PRIVILEGES;\n",
            f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n",
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';\n",
        ]
        done = subprocess.run(
            [*self._command(), "--bootstrap"],
            input="\n".join(parts).encode(),
            env=self._environment(),
            capture_output=True,
            timeout=START_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"MariaDB cannot be set up:\n{done.stderr.decode()[-2000:]}")

    def start(self) -> None:
        """Starts it, with its data and on its port, and waits until it answers."""
        command = [
            *self._command(),
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--socket={self.folder / 's.sock'}",
            "--skip-name-resolve",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log
            )
        atexit.register(self.stop)
        self._wait()

    def _wait(self) -> None:
        import pymysql

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connect().close()
                return
            except pymysql.OperationalError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = self._log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"MariaDB does not start ({error}):\n{log}") from error
                time.sleep(0.1)

    def stop(self) -> None:
        """Ends the process, and waits for it."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.stop)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def connect(self, **settings: Any) -> Any:
        """A connection of PyMySQL."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            charset="utf8mb4",
            autocommit=True,
            **settings,
        )

    def run(self, *statements: str) -> None:
        """Executes statements."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()


@contextmanager
def server() -> Iterator[Server]:
    """A server of its own with an empty database system."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mariadb-") as folder:
        running = Server(Path(folder))
        try:
            yield running
        finally:
            running.stop()
