"""Iceberg's own REST catalog server for tests, with its warehouse in an S3 bucket.

It keeps its tables in SQLite in a folder of its own. Its port cannot be bound to loopback only; its
clients here use 127.0.0.1.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.processes import JAVA, ServerProcess, free_port, is_listening
from tests.support.s3 import ObjectStore
from tidegate.spark import jars

# What Iceberg's catalogs need of Hadoop, and the AWS SDK of an HTTP client, as Spark has them.
OF_SPARK = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "httpclient",
    "httpcore",
    "commons-codec",
    "jcl-over-slf4j",
)


def class_path() -> str:
    """The jars of the server; RuntimeError where they have not been fetched."""
    place = jars.folder()
    own = None if place is None else place / jars.REST_CATALOG.folder
    shared = [] if place is None else [place / jar.file for jar in (*jars.ICEBERG[1:], *jars.S3A)]
    needed = [] if own is None else [own / jar.file for jar in jars.REST_CATALOG.jars]
    if own is None or not all(path.is_file() for path in [*needed, *shared]):
        raise RuntimeError("the jars of the REST catalog are not there: run `make jars`")
    spark = Path(pyspark.__file__).parent / "jars"
    of_spark = [path for name in OF_SPARK for path in spark.glob(f"{name}-[0-9]*.jar")]
    return ":".join([f"{own}/*", *map(str, [*shared, *of_spark])])


class RestCatalog:
    """A running catalog server."""

    def __init__(self, folder: Path, store: ObjectStore, warehouse: str) -> None:
        self.port = free_port()
        self.store = store
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            **store.iceberg(),
        }
        self.process = ServerProcess(
            "the REST catalog",
            [*JAVA, "-Xmx256m", "-cp", class_path(), jars.REST_CATALOG.main],
            folder / "catalog.log",
            environment={
                "CATALOG_REST_PORT": str(self.port),
                **{_variable(name): value for name, value in settings.items()},
            },
        )

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process.start(lambda: is_listening(self.port))

    def namespaces(self) -> list[str]:
        """The names of all namespaces."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/v1/namespaces")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return [".".join(each) for each in answer["namespaces"]]

    def spark(self) -> dict[str, str]:
        """What a Spark catalog of it is told, without `spark.sql.catalog.NAME.`."""
        return {
            "type": "rest",
            "uri": self.uri,
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            **self.store.iceberg(),
        }


def _variable(setting: str) -> str:
    """The environment variable that the server reads a catalog's setting from."""
    return "CATALOG_" + setting.replace("-", "__").replace(".", "_").upper()


@contextmanager
def rest_catalog(store: ObjectStore, warehouse: str) -> Iterator[RestCatalog]:
    """A server of its own with no tables; `warehouse` is an s3:// folder in a bucket that exists."""
    with tempfile.TemporaryDirectory(prefix="tidegate-rest-catalog-") as folder:
        running = RestCatalog(Path(folder), store, warehouse)
        running.start()
        try:
            yield running
        finally:
            running.process.stop()
