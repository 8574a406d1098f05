"""Schema versions of Simple in a real lake, fed message by message."""

from tests.changefeed.test_replay import Source, decoded
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.lake.job.mirror import Mirror


def test_a_lake_goes_on_after_a_rename_swap_of_two_versions(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake)
    for part in in_chunks(decoded("new/x_renameswap.simple.json"), 17):
        fill(lake, part)
        while mirror.step([("", 0)]):
            pass
    assert mirror.state.applied_ts == mirror.gate.resolved_ts
    assert contents(lake) == expected(Source("new/x_renameswap").at(2**63))
