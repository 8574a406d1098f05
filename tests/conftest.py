"""What several folders of tests share: one Spark session and one of each server a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support import postgres
    from tests.support.kafka import Broker
    from tests.support.rest_catalog import RestCatalog
    from tests.support.s3 import ObjectStore


# A test is over before the JVM's second compiler has paid for itself. Also for the commands that
# tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the test run, with Kafka, Iceberg and Delta."""
    from tidegate.spark import jars, session

    if jars.folder() is None:
        pytest.fail("Spark's jars are not there: run `make jars`.")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    running = session(
        "tidegate-tests",
        master="local[2]",
        settings={
            "spark.driver.memory": "1536m",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.streaming.checkpointLocation": str(tmp_path_factory.mktemp("checkpoints")),
        },
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """The one Kafka broker of the test run."""
    from tests.support.kafka import broker

    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """The one S3 server of the test run, with a bucket `lake`."""
    from tests.support.s3 import object_store

    with object_store() as running:
        running.create_bucket("lake")
        yield running


@pytest.fixture(scope="session")
def rest_catalog(object_store: ObjectStore) -> Iterator[RestCatalog]:
    """The one REST catalog of the test run; its tables are in the S3 server."""
    from tests.support.rest_catalog import rest_catalog

    object_store.create_bucket("warehouse")
    with rest_catalog(object_store, "s3://warehouse/rest") as running:
        yield running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[postgres.Server]:
    """The one PostgreSQL of the test run."""
    from tests.support import postgres

    try:
        with postgres.server() as running:
            yield running
    except postgres.MissingServer as missing:
        pytest.skip(str(missing))
