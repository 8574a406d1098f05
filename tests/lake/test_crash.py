"""A mirror killed with SIGKILL on a real Kafka, and started again: nothing lost, nothing twice.

The short form of `make soak`; tests/support/soak.py has the details.
"""

import pytest

from tests.support.soak import Soak, SoakFeed, check


@pytest.fixture(scope="module")
def feed():
    """Small: what a step does to many tables with many statements is for `make soak`."""
    return SoakFeed("bank", "canal-json", rows=1200, seed=5, watermarks=10, resends=2)


def test_a_mirror_that_is_killed_loses_nothing_and_does_nothing_twice(spark, kafka, tmp_path, feed):
    soak = Soak(kafka, feed, tmp_path, seed=5, topic="crash", max_messages=800)
    soak.send(0.5)
    assert soak.run("ingest").killed
    assert soak.run(armed=["rows"]).where == "rows"
    soak.send(0.8)
    assert soak.run("apply", follow=True).killed
    soak.send(1.0)
    last = soak.run()
    assert not last.killed
    assert last.where == "done"
    soak.wait_for_the_dead()
    assert check(soak.open(spark), soak, instants=3) >= 3
