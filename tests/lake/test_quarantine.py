"""The quarantine: what it reads of a lake."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import functions as F

from tests.lake.test_late import READING, Script
from tests.support.lake import fill, new_lake
from tidegate.lake.changelog.changelog import OF_ROWS
from tidegate.lake.quarantine import BEGUN, Place, Quarantine
from tidegate.lake.storage.predicates import equal


def remove_rows(lake):
    """Removes the changelog's files of row changes from the disk: who opens one fails."""
    rows = lake.changelog.read().where(OF_ROWS.spark())
    files = rows.select(F.input_file_name()).distinct().collect()
    assert files
    for (uri,) in files:
        Path(unquote(urlsplit(uri).path)).unlink()


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_bad_messages_are_counted_without_opening_the_files_of_rows(spark, tmp_path, table_format):
    feed = Script()
    feed.create("a")
    feed.put("a", 1, 0)
    feed.put("a", 2, 0, late=True)
    lake = new_lake(spark, tmp_path, table_format)
    fill(lake, feed.changes())
    remove_rows(lake)
    quarantine = Quarantine(lake)
    assert quarantine.count() == 1
    assert [each.place for each in quarantine.messages()] == [Place("", 0, 2)]


def test_a_retry_that_was_cut_off_looks_only_at_the_files_of_its_places(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    feed = Script()
    feed.create("a")
    feed.put("a", 1, 0)
    fill(lake, feed.changes())
    remove_rows(lake)
    later = Script()
    later.messages = [*feed.messages]
    later.put("a", 2, 0, late=True)
    changes = later.changes()
    fill(lake, changes.filter(equal("offset", 2).arrow()))
    quarantine = Quarantine(lake)
    quarantine._tell([Place("", 0, 2)], BEGUN)
    assert quarantine._finish_begun() == ()
    assert quarantine.count() == 1
    assert quarantine.retry(READING).read == (Place("", 0, 2),)
