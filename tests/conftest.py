"""What several folders of tests share: one Spark session and one Kafka broker a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka import Broker


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
