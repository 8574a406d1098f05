"""Timestamps of the oracle and instants."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tidegate.model import tso

# commitTs and `es` of one Canal-JSON message of TiCDC
COMMIT_TS, ES = 470492978058887169, 1794788276897


def test_es_is_the_physical_part_of_the_commit_timestamp():
    assert tso.physical_ms(COMMIT_TS) == ES


def test_a_timestamp_is_its_two_parts():
    assert tso.tso_from_ms(ES, tso.logical(COMMIT_TS)) == COMMIT_TS
    assert tso.tso_from_ms(1, 2) == (1 << 18) + 2


def test_an_instant_is_utc_to_the_millisecond():
    instant = datetime(2026, 11, 16, 0, 17, 56, 897000, tzinfo=UTC)
    assert tso.tso_to_datetime(COMMIT_TS) == instant
    assert tso.tso_from_datetime(instant) == tso.tso_from_ms(ES)


def test_any_time_zone_gives_the_same_timestamp():
    instant = tso.tso_to_datetime(COMMIT_TS)
    elsewhere = instant.astimezone(timezone(timedelta(hours=8)))
    assert tso.tso_from_datetime(elsewhere) == tso.tso_from_datetime(instant)


def test_every_millisecond_comes_back_exactly():
    for ms in (0, 1, 999, ES + 1, 2**46 - 1):
        assert tso.tso_from_datetime(tso.tso_to_datetime(tso.tso_from_ms(ms))) == tso.tso_from_ms(
            ms
        )


@pytest.mark.parametrize(("ms", "logical"), [(-1, 0), (0, -1), (0, 1 << 18)])
def test_a_part_out_of_its_range_is_refused(ms, logical):
    with pytest.raises(ValueError, match="must"):
        tso.tso_from_ms(ms, logical)


def test_an_instant_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        tso.tso_from_datetime(datetime(2021, 12, 20))
