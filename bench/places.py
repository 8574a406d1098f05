"""Where contestants put their tables: a local folder, or a REST catalog with an S3 server.

A place is given to a contestant as JSON. The servers are the ones of the tests, on loopback; what
they take of the machine's time counts by the clock, but not as a contestant's CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.rest_catalog import RestCatalog, rest_catalog
from tests.support.s3 import ObjectStore, object_store
from tidegate.lake import LakePlace, session_settings

LOCAL, REST = "local", "REST + S3"
CATALOG = "bench"


@dataclass(frozen=True, slots=True)
class BenchPlace:
    """A folder on this machine for anything, and the catalog of tables, if it is not the own one.

    `lake` is where Tidegate keeps what is not in a catalog.
    """

    folder: str
    lake: str
    table_format: str = "iceberg"
    catalog: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_lake(self) -> LakePlace:
        """The same for Tidegate."""
        return LakePlace(self.lake, self.catalog)

    def spark(self) -> dict[str, str]:
        """The settings of Spark for Tidegate."""
        return session_settings(self.of_lake, self.table_format) | dict(self.settings)

    def to_text(self) -> str:
        """What `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> BenchPlace:
        """The place that `to_text` wrote down."""
        return cls(**json.loads(text))


class Places:
    """Makes a new place for each contestant."""

    def __init__(self, folder: Path, servers: tuple[ObjectStore, RestCatalog] | None) -> None:
        self._folder = folder
        self._servers = servers
        self._count = 0

    def new(self, kind: str, table_format: str = "iceberg") -> BenchPlace:
        """A place that nothing has been put to."""
        self._count += 1
        folder = self._folder / f"place{self._count}"
        folder.mkdir()
        if kind == LOCAL:
            return BenchPlace(str(folder), str(folder / "lake"), table_format)
        assert self._servers is not None
        store, catalog = self._servers
        settings = {
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            **{f"spark.sql.catalog.{CATALOG}.{name}": of for name, of in catalog.spark().items()},
            **{f"spark.hadoop.{name}": value for name, value in store.s3a().items()},
        }
        return BenchPlace(str(folder), f"s3a://lake/{folder.name}", table_format, CATALOG, settings)


@contextmanager
def places(folder: Path, *, remote: bool) -> Iterator[Places]:
    """Places below a folder; `remote` starts a REST catalog and an S3 server of their own."""
    if not remote:
        yield Places(folder, None)
        return
    with object_store() as store:
        for bucket in ("lake", "warehouse"):
            store.create_bucket(bucket)
        with rest_catalog(store, "s3://warehouse/rest") as catalog:
            yield Places(folder, (store, catalog))
