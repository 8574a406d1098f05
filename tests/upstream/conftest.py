"""One MariaDB for all tests of the upstream, and an empty database in it for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import mariadb
from tests.support.tidb_proxy import TidbProxy, tidb_proxy
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.server import DatabaseServer


@pytest.fixture(scope="session")
def maria_server() -> Iterator[mariadb.Server]:
    try:
        with mariadb.server() as running:
            yield running
    except mariadb.MissingServer as missing:
        pytest.skip(str(missing))


@pytest.fixture
def maria(maria_server: mariadb.Server) -> mariadb.Server:
    """The server, with a database `d` that has no tables."""
    maria_server.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    return maria_server


@pytest.fixture
def database(maria: mariadb.Server) -> MySQL:
    return MySQL(DatabaseServer.parse(maria.uri, "load"))


@pytest.fixture
def proxy(maria: mariadb.Server) -> Iterator[TidbProxy]:
    with tidb_proxy(maria.port) as running:
        yield running
