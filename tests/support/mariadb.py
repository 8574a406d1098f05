"""A real MariaDB for tests, on loopback: Debian's packages, unpacked but not installed.

The packages are fetched once (`apt-get download`) and kept in build/mariadb. Where that cannot be
done, a server that the machine has is used; where there is none, `MissingServer` says so. It is
stopped by its process id, also when the test run ends by an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import debian
from tests.support.debian import MissingServer
from tests.support.processes import START_SECONDS, ServerProcess, free_port

PACKAGES = ("mariadb-server-core", "libaio1", "libnuma1", "liburing2")
USER, PASSWORD = "mirror", "s3cret/@:pass"
FOLDER = debian.BUILD / "mariadb"


@dataclass(frozen=True)
class Program:
    """A server that can be started: its executable, its files and its libraries."""

    executable: Path
    share: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def program() -> Program:
    """The server of the machine, or that of the packages, which are fetched now if need be."""
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return Program(Path(found), _share(Path("/")))
    debian.unpack("MariaDB", FOLDER, lambda: PACKAGES)
    return Program(FOLDER / "usr/sbin/mariadbd", _share(FOLDER), debian.libraries(FOLDER))


def _share(root: Path) -> Path:
    for name in ("usr/share/mysql", "usr/share/mariadb"):
        if (root / name / "mysql_system_tables.sql").is_file():
            return root / name
    raise MissingServer(f"MariaDB's system tables are not under {root}")


class Server:
    """A running server with a user that may do everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._program = program()
        self._process = ServerProcess(
            "MariaDB",
            [
                *self._command(),
                "--bind-address=127.0.0.1",
                f"--port={self.port}",
                f"--socket={folder / 's.sock'}",
                "--skip-name-resolve",
            ],
            folder / "server.log",
            environment=self._program.environment,
        )
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
            "--innodb-flush-method=nosync",  # the machine does not fail while a test runs
            "--sync-frm=0",
            "--character-set-server=utf8mb4",
        ]

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
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n",
        ]
        done = subprocess.run(
            [*self._command(), "--bootstrap"],
            input="\n".join(parts).encode(),
            env={**os.environ, **self._program.environment},
            capture_output=True,
            timeout=START_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"MariaDB cannot be set up:\n{done.stderr.decode()[-2000:]}")

    def start(self) -> None:
        """Starts it, with its data and on its port, and waits until it answers."""
        self._process.start(self._answers)

    def _answers(self) -> bool:
        self.connect().close()
        return True

    def stop(self) -> None:
        """Ends the process, and waits for it."""
        self._process.stop()

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
