"""The guard of a snapshot: it notices a loss, opens what was cut, and says how long it can hold."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.tidb_proxy import Refusal
from tidegate.model import tso_from_datetime
from tidegate.upstream.errors import DatabaseUnreachable, SnapshotLost
from tidegate.upstream.guard import SnapshotGuard
from tidegate.upstream.tidb import TiDB

TAKEN = datetime(2026, 11, 17, 10, 0, 0, tzinfo=UTC)
T = tso_from_datetime(TAKEN)


class Clock:
    """Shows what a test says."""

    def __init__(self) -> None:
        self.now = TAKEN

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def tidb(proxy):
    proxy.answer(r"SET SESSION tidb_.*", [])
    proxy.answer("SHOW MASTER STATUS", [("tidb-binlog", str(T), "", "", "")])
    proxy.answer("SELECT @@global.*", [("10m0s", "86400")])
    safe_point(proxy, "20261117-09:50:00.000 +0000")
    return TiDB(proxy.server)


def safe_point(proxy, text):
    proxy.answer(r"SELECT VARIABLE_VALUE FROM mysql.tidb .*", [(text,)])


def asked(proxy, statement):
    return sum(each == statement for each in proxy.statements)


def test_it_holds_until_garbage_collection_stops_waiting(tidb):
    clock = Clock()
    guard = SnapshotGuard(tidb, T, clock=clock)
    report = guard.check()
    assert report.holds
    assert report.holds_until == TAKEN + timedelta(days=1)
    assert report.time_left(TAKEN + timedelta(hours=1)) == timedelta(hours=23)
    clock.now += timedelta(minutes=1)
    assert guard.check().checked == TAKEN + timedelta(minutes=1)
    guard.close()


def test_each_check_uses_the_one_session(proxy, tidb):
    guard = SnapshotGuard(tidb, T)
    for _ in range(3):
        assert guard.check().holds
    assert asked(proxy, f"SET SESSION tidb_snapshot = '{T}'") == 1
    assert asked(proxy, "SELECT 1") == 2
    guard.close()


def test_a_connection_that_was_cut_is_opened_again_at_the_same_tso(proxy, tidb):
    guard = SnapshotGuard(tidb, T)
    guard.check()
    proxy.cut_all()
    assert guard.check().holds
    assert asked(proxy, f"SET SESSION tidb_snapshot = '{T}'") == 2
    guard.close()


def test_what_was_collected_while_the_connection_was_cut_is_lost_for_good(proxy, tidb):
    losses = []
    guard = SnapshotGuard(tidb, T, on_loss=losses.append)
    guard.check()
    proxy.answer(
        r"SET SESSION tidb_snapshot.*", Refusal(8055, "snapshot is older than GC safe point")
    )
    proxy.cut_all()
    report = guard.check()
    assert not report.holds
    assert isinstance(report.lost, SnapshotLost)
    proxy.answer(r"SET SESSION tidb_snapshot.*", [])
    assert guard.check() is report
    assert losses == [report.lost]
    guard.close()


@pytest.mark.parametrize(
    ("passed", "holds"),
    [("20261117-09:59:59.999 +0000", True), ("20261117-10:00:00.001 +0000", False)],
)
def test_a_safe_point_after_the_tso_is_a_loss(proxy, tidb, passed, holds):
    guard = SnapshotGuard(tidb, T)
    guard.check()
    safe_point(proxy, passed)
    report = guard.check()
    assert report.holds == holds
    assert (report.lost is None) == holds
    guard.close()


def test_9006_is_a_loss(proxy, tidb):
    guard = SnapshotGuard(tidb, T)
    guard.check()
    proxy.answer("SELECT 1", Refusal(9006, "GC life time is shorter than transaction duration"))
    assert isinstance(guard.check().lost, SnapshotLost)
    guard.close()


def test_it_does_not_start_without_its_rows(proxy, tidb):
    proxy.answer(r"SET SESSION tidb_snapshot.*", Refusal(8055, "snapshot is older"))
    with pytest.raises(SnapshotLost), SnapshotGuard(tidb, T):
        pass


def test_the_thread_notices_a_loss_by_itself(proxy, tidb):
    lost = threading.Event()
    with SnapshotGuard(
        tidb, T, interval=timedelta(milliseconds=5), on_loss=lambda error: lost.set()
    ) as guard:
        assert guard.report.holds
        safe_point(proxy, "20261118-00:00:00.000 +0000")
        assert lost.wait(30)
        assert guard.report.lost is not None


# --- a server that shows the present only ---------------------------------------------------------


def test_a_connection_that_the_server_ends(maria, database):
    guard = SnapshotGuard(database, None)
    assert guard.check().holds
    assert guard.report.holds_until is None
    session = guard._session
    ((id,),) = session.rows("SELECT CONNECTION_ID()")
    maria.run(f"KILL {id}")
    assert guard.check().holds
    assert guard._session is not session
    guard.close()


def test_a_server_that_cannot_be_reached_is_no_loss(proxy, tidb):
    guard = SnapshotGuard(tidb, T)
    guard.check()
    proxy.close()
    report = guard.check()
    assert not report.holds
    assert report.lost is None
    assert isinstance(report.unreachable, DatabaseUnreachable)
    assert report.holds_until == TAKEN + timedelta(days=1)
    guard.close()
