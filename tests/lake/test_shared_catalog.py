"""Several lakes in one catalog or folder: each finds, changes and maintains its own tables only.

The REST catalog is configured with Spark's defaults, its cache of tables included.
"""

import json

import pytest

from tests.lake.test_catalogs import add_catalog
from tests.lake.test_formats import schema_of
from tests.lake.test_sources import WorkloadFeed
from tests.support.commands import run
from tests.support.rest_catalog import rest_catalog
from tidegate.lake import Lake
from tidegate.lake.formats import open_format
from tidegate.lake.formats.base import LakePlace, Position
from tidegate.lake.job.mirror import Mirror
from tidegate.model import LakeError

ROWS = 600
PREFIXES = {"s3://shared/plain": "", "s3://shared/marked": "b_"}


@pytest.fixture(scope="module")
def catalog(request, object_store):
    """The name of a catalog that has nothing in it."""
    object_store.create_bucket("shared")
    with rest_catalog(object_store, "s3://shared/tables") as running:
        yield add_catalog(request, running.spark())


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    return WorkloadFeed("bank", ROWS, tmp_path_factory.mktemp("feed") / "feed.parquet")


@pytest.fixture(scope="module")
def lakes(spark, catalog, feed):
    """Two lakes of the same feed, by name."""
    opened = {}
    for name, prefix in PREFIXES.items():
        options = ("--lake", name, "--catalog", catalog, "--prefix", prefix, "--once")
        assert run("mirror", feed.path, *options)[0] == 0
        opened[name] = Lake(spark, LakePlace(name, catalog, prefix=prefix))
    return opened


def versions(lake):
    return {each.identifier: lake.tables.version(each.identifier) for each in lake.tables.locate()}


def test_each_lake_sees_its_own_tables_and_both_are_true(lakes, feed):
    plain, marked = map(versions, lakes.values())
    assert plain
    assert len(plain) == len(marked)
    assert not plain.keys() & marked.keys()
    for lake in lakes.values():
        feed.assert_mirrored(lake, Mirror(lake), 1)


def test_sparks_cache_of_catalog_tables_may_stay_on(spark, catalog, feed):
    assert spark.conf.get(f"spark.sql.catalog.{catalog}.cache-enabled", None) is None
    name, prefix, steps = "s3://shared/cached", "cached_", 4
    options = ("--lake", name, "--catalog", catalog, "--prefix", prefix, "--once")
    seconds = feed.step_ms(steps) / 1000
    assert run("mirror", feed.path, *options, "--max-step-seconds", seconds)[0] == 0
    lake = Lake(spark, LakePlace(name, catalog, prefix=prefix))
    feed.assert_mirrored(lake, Mirror(lake), steps)


def test_commands_find_a_lake_by_its_name(lakes, catalog):
    for name, prefix in PREFIXES.items():
        for given in (("--lake", name), ("--prefix", prefix)):
            code, printed = run("status", "--catalog", catalog, *given, "--output", "json")
            document = json.loads(printed)
            assert (code, document["lake"]) == (0, name)
            own = {each["identifier"] for each in document["tables"]}
            assert own == versions(lakes[name]).keys()


def test_the_next_run_of_a_mirror_needs_no_prefix(lakes, catalog, feed):
    before = {name: versions(lake) for name, lake in lakes.items()}
    assert run("mirror", feed.path, "--lake", "s3://shared/marked", "--catalog", catalog, "--once")
    assert {name: versions(lake) for name, lake in lakes.items()} == before


def test_of_several_lakes_one_must_be_named(lakes, catalog):
    with pytest.raises(LakeError, match=r"several lakes .*s3://shared/plain .*Say which one"):
        run("status", "--catalog", catalog)


def test_another_name_for_a_prefix_that_is_taken_is_refused(lakes, catalog, feed):
    other = ("--lake", "s3://shared/other", "--catalog", catalog, "--prefix", "b_", "--once")
    with pytest.raises(LakeError, match=r"is 's3://shared/marked', not 's3://shared/other'"):
        run("mirror", feed.path, *other)


def test_maintenance_leaves_the_tables_of_the_other_lake_as_they_are(lakes, catalog, feed):
    marked = lakes["s3://shared/marked"]
    before = versions(marked)
    run("maintain", "--lake", "s3://shared/plain", "--catalog", catalog, "--keep", 0)
    assert versions(marked) == before
    feed.assert_mirrored(marked, Mirror(marked), 1)


def test_a_lake_takes_no_table_of_another(lakes, catalog, feed, spark):
    """The prefix of one lake and its database come to the names of another lake's."""
    before = versions(lakes["s3://shared/marked"])
    place = ("--lake", "s3://shared/third", "--catalog", catalog, "--prefix", "b")
    with pytest.raises(LakeError, match=r"already a table .*of the lake that has 'b__tidegate'"):
        run("mirror", feed.path, *place, "--rename", "bank.*=_bank.*", "--once")
    assert versions(lakes["s3://shared/marked"]) == before
    assert Lake(spark, LakePlace("s3://shared/third", catalog, prefix="b")).tables.locate() == []


def test_a_table_of_nobody_is_not_taken(catalog, feed, spark):
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.mine_bank")
    for table in ("accounts", "transfers"):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {catalog}.mine_bank.{table} (a INT) USING iceberg")
    place = ("--lake", "s3://shared/mine", "--catalog", catalog, "--prefix", "mine_")
    with pytest.raises(LakeError, match=r"already a table .*it is none of Tidegate's"):
        run("mirror", feed.path, *place, "--once")
    assert spark.table(f"{catalog}.mine_bank.accounts").columns == ["a"]


@pytest.mark.parametrize("format_name", ["iceberg", "delta"])
def test_lakes_in_one_folder_are_kept_apart(spark, tmp_path, format_name):
    schema = schema_of("CREATE TABLE orders (id INT PRIMARY KEY)")
    place = LakePlace(str(tmp_path), name=f"apart_{format_name}")
    formats = [
        open_format(format_name, spark, place._replace(prefix=prefix)) for prefix in ("", "x_")
    ]
    made = [tables.create("shop", "orders", schema, Position(1)) for tables in formats]
    located = [[each.identifier for each in tables.locate()] for tables in formats]
    assert located == [[made[0]], [made[1]]]
    formats[0].retire(made[0], Position(2))
    assert [[each.retired for each in tables.locate()] for tables in formats] == [[True], [False]]
