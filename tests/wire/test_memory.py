"""The memory that decoding takes is bounded by its input."""

from pathlib import Path

import pytest

from bench import memory


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are Linux's to tell")
def test_decoding_holds_at_most_four_times_its_input():
    over = [row for row in memory.run() if row["times_input"] > memory.MOST_TIMES_INPUT]
    assert over == []
