"""What maintenance may remove from the changelog: only what the tables have."""

from datetime import timedelta

import pyarrow.compute as pc
import pytest

from tests.lake.test_late import Script
from tests.support.lake import contents, fill, new_lake
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.maintenance import maintain


def without_watermarks():
    """A feed whose last message has an earlier commit_ts than the one before it."""
    feed = Script()
    feed.create("a")
    for key in (1, 2, 3):
        feed.put("a", key, 0)
    feed.messages.append(feed.messages.pop(1))
    return feed.changes()


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_changes_that_were_not_applied_stay_whatever_their_commit_ts(spark, tmp_path, table_format):
    changes = without_watermarks()
    is_last = pc.equal(changes["offset"], 3)
    lake = new_lake(spark, tmp_path, table_format)
    mirror = Mirror(lake, watermarks=False)
    fill(lake, changes.filter(pc.invert(is_last)))
    while mirror.step():
        pass
    fill(lake, changes.filter(is_last))
    list(maintain(lake, timedelta()))
    kinds = [row["kind"] for row in lake.changelog.read().select("kind").collect()]
    assert kinds.count("ddl") == 0
    while mirror.step():
        pass
    assert contents(lake)["d", "a"] == [("1", "0"), ("2", "0"), ("3", "0")]
