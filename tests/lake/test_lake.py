"""A lake is made on purpose only, and is a feed's once something of the feed was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support import corpus
from tests.support.lake import fill, new_lake
from tidegate.lake import Feed, Lake, LakePlace, Mirror, MirrorRun
from tidegate.lake.changelog.changelog import columns
from tidegate.lake.formats import open_format
from tidegate.lake.lake import find_lake
from tidegate.model import LakeError
from tidegate.wire import decode_batch


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_opening_a_lake_never_makes_one(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    place = LakePlace(str(tmp_path / "lake"))
    with pytest.raises(LakeError, match="There is no lake in"):
        Lake(spark, place, table_format)
    assert not (tmp_path / "lake").exists()
    (tmp_path / "lake").mkdir()
    with pytest.raises(LakeError, match="There is no lake in"):
        Lake(spark, place, table_format)
    assert list((tmp_path / "lake").iterdir()) == []
    assert Lake.create(spark, place, table_format).is_empty()
    assert Lake(spark, place, table_format).is_empty()


def test_a_catalog_whose_warehouse_does_not_exist_yet_has_no_lake(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = "spark.sql.catalog.fresh"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{catalog}.type", "hadoop")
    spark.conf.set(f"{catalog}.warehouse", str(tmp_path / "warehouse"))
    assert find_lake(spark, LakePlace("s3://bucket/lake", "fresh"), "iceberg", None) is None
    assert not (tmp_path / "warehouse").exists()


def claimed(lake: Lake, topics: str) -> Any:
    """Lets a run of another feed take the lake, as it does at its start."""
    feed: Any = Feed(None, None, {"topics": topics})  # type: ignore[arg-type]
    run = MirrorRun(lake, feed)
    run._claim(Mirror(lake, feed=feed.identity))
    claim = lake.claim()
    return None if claim is None else claim["feed"]["topics"]


def test_a_feed_of_which_nothing_was_read_does_not_bind_the_lake(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = new_lake(spark, tmp_path / "lake")
    assert claimed(lake, "shopp") == "shopp"
    assert claimed(lake, "shop") == "shop"
    message = corpus.messages("types.canal.ext")[0]
    fill(lake, pa.Table.from_batches([decode_batch("canal-json", None, [message.value])]))
    with pytest.raises(LakeError, match="topics is 'shop', not 'shopp'"):
        claimed(lake, "shopp")
    assert claimed(lake, "shop") == "shop"


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_lake_of_an_earlier_version_is_refused(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    """Its changelog has a file for each table, and a checkpoint of Spark's beside it."""
    place = LakePlace(str(tmp_path / "lake"), name="earlier")
    tables = open_format(table_format, spark, place)
    tables.create_log("changelog", columns(), ["database", "table", "control"])
    with pytest.raises(
        LakeError, match=r"made by an earlier version .* Mirror the feed into a new"
    ):
        Lake(spark, place, table_format)
