"""What is wrong with a catalog or a store is said in a sentence, soon, and nothing is changed.

Real servers refuse: an S3 server that knows no keys, a catalog behind a guard of tokens, ports that
nobody listens on. What a cluster can lack is in `test_cluster`.
"""

import os
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from tests.lake.test_catalogs import unique
from tests.support.commands import run
from tests.support.guarded import KNOWN, guarded
from tests.support.processes import free_port
from tests.support.rest_catalog import rest_catalog
from tests.support.s3 import object_store as s3_server
from tidegate.cli.app import commands
from tidegate.model import LakeError, TidegateError
from tidegate.spark import jars

MOST_SECONDS = 30


class Case(NamedTuple):
    """A misconfiguration: how it is made, and what is said of it."""

    made: object
    what: str
    step: str


class Parts:
    """The servers of this module, and the settings of Spark that name them wrongly."""

    def __init__(self, spark, store, strict, catalog, guard, tmp_path):
        self.spark, self.store, self.strict = spark, store, strict
        self.rest, self.guard = catalog, guard
        self.folder = tmp_path

    def catalog(self, **changed):
        """The options for a lake in the REST catalog, with some settings of the catalog changed."""
        name = unique("wrong")
        self.spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        changed = {
            setting.replace("__", "-").replace("_", "."): v for setting, v in changed.items()
        }
        for setting, value in (self.rest.spark() | changed).items():
            self.spark.conf.set(f"spark.sql.catalog.{name}.{setting}", value)
        return ("--lake", f"s3://lake/{name}", "--catalog", name, "--prefix", f"{name}_")

    def delta(self, bucket="lake", **changed):
        """The options for a Delta lake in S3, with some settings of Hadoop changed."""
        hadoop = self.spark.sparkContext._jsc.hadoopConfiguration()
        settings = self.store.s3a() | {
            f"fs.s3a.{n.replace('_', '.')}": v for n, v in changed.items()
        }
        for setting, value in settings.items():
            hadoop.set(setting, value)
        # Hadoop keeps file systems by scheme and bucket, with the settings that they had.
        self.spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem.closeAll()
        return ("--lake", f"s3a://{bucket}/{unique('wrong')}", "--format", "delta")


def nowhere():
    return f"http://127.0.0.1:{free_port()}"


CASES = {
    "unknown catalog": Case(
        lambda parts: ("--lake", "s3://lake/of_no_catalog", "--catalog", "no_such"),
        "Spark has no catalog 'no_such'",
        "spark.sql.catalog.no_such=org.apache.iceberg.spark.SparkCatalog",
    ),
    "catalog unreachable": Case(
        lambda parts: parts.catalog(uri=nowhere()), "it does not answer", ".uri"
    ),
    "token unknown": Case(
        lambda parts: parts.catalog(uri=parts.guard, token="wrong"),
        "it refuses the token",
        ".token",
    ),
    "token without rights": Case(
        lambda parts: parts.catalog(uri=parts.guard, token=KNOWN), "it refuses the token", ".token"
    ),
    "bucket missing": Case(
        lambda parts: parts.catalog(uri=parts.bucketless.uri),
        "the bucket does not exist",
        "Create it",
    ),
    "S3 key wrong": Case(
        lambda parts: parts.catalog(s3_endpoint=parts.strict.endpoint),
        "the object store refuses the credentials",
        "Correct the key",
    ),
    "S3 unreachable": Case(
        lambda parts: parts.catalog(s3_endpoint=nowhere()),
        "the object store does not answer",
        "Correct the endpoint",
    ),
    "Delta, bucket missing": Case(
        lambda parts: parts.delta("no-such-bucket"), "the bucket does not exist", "Create it"
    ),
    "Delta, S3 key wrong": Case(
        lambda parts: parts.delta(endpoint=parts.strict.endpoint),
        "the object store refuses the credentials",
        "Correct the key",
    ),
    "Delta, S3 unreachable": Case(
        lambda parts: parts.delta(endpoint=nowhere()),
        "the object store does not answer",
        "Correct the endpoint",
    ),
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    path = tmp_path_factory.mktemp("captures") / "bank.parquet"
    commands.main(["generate", "bank", str(path), "--rows", "20"], standalone_mode=False)
    return path


@pytest.fixture(scope="module")
def parts(spark, object_store, rest_catalog, tmp_path_factory):
    with s3_server(knows_no_key=True) as strict, guarded(rest_catalog.port) as guard:
        strict.create_bucket("lake")
        made = Parts(spark, object_store, strict, rest_catalog, guard, tmp_path_factory)
        with bucketless(object_store) as made.bucketless:
            yield made
        made.delta()  # the settings as they were


def bucketless(store):
    """A catalog whose warehouse is in a bucket that does not exist."""
    return rest_catalog(store, "s3://no-such-bucket/tables")


@pytest.mark.parametrize("name", CASES)
def test_a_misconfiguration_is_a_sentence_soon_and_changes_nothing(parts, capture, name):
    case = CASES[name]
    options = case.made(parts)
    started = time.monotonic()
    with pytest.raises(TidegateError) as refusal:
        run("mirror", capture, *options, "--once")
    seconds = time.monotonic() - started
    assert isinstance(refusal.value, LakeError)
    said = str(refusal.value)
    print(f"{name}: {seconds:.1f} s: {said}")
    assert case.what in said
    assert case.step in said
    assert "\n" not in said
    assert seconds < MOST_SECONDS
    lake = options[1].rpartition("/")[2]
    assert parts.store.keys(lake) == []
    for catalog in (parts.rest, parts.bucketless):
        assert not [each for each in catalog.namespaces() if each.startswith(lake)]


def test_a_jar_that_is_missing_is_named_with_how_to_get_it(capture, tmp_path, rest_catalog):
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in jars.ICEBERG:
        (folder / jar.file).symlink_to(jars.folder() / jar.file)
    settings = {"spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog"}
    settings |= {f"spark.sql.catalog.prod.{each}": v for each, v in rest_catalog.spark().items()}
    options = [part for each in settings.items() for part in ("--spark-conf", "=".join(each))]
    command = [sys.executable, "-m", "tidegate.cli", "mirror", capture, "--once", *options]
    lake = ("--lake", "s3://lake/jarless", "--catalog", "prod", "--prefix", "jarless_")
    done = subprocess.run(
        [*command, *lake, "--master", "local[1]"],
        capture_output=True,
        text=True,
        env=os.environ | {jars.VARIABLE: str(folder)},
    )
    assert done.returncode == 2
    said = done.stderr.splitlines()[0]
    assert "Spark lacks the jar that has software/amazon/awssdk/" in said
    assert "python -m tidegate.spark.jars DIR --s3`" in said
    assert not [each for each in rest_catalog.namespaces() if each.startswith("jarless")]
