"""One MariaDB for all tests of loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import mariadb


@pytest.fixture(scope="session")
def maria() -> Iterator[mariadb.Server]:
    try:
        with mariadb.server() as running:
            yield running
    except mariadb.MissingServer as missing:
        pytest.skip(str(missing))
