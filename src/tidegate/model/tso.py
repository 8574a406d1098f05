"""Timestamps of TiDB's oracle (TSO): 46 bits of milliseconds since 1970 UTC, 18 of a counter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
LAST_LOGICAL = (1 << LOGICAL_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def physical_ms(tso: int) -> int:
    """Milliseconds since 1970 UTC; Canal-JSON's `es` is this of the commit timestamp."""
    return tso >> LOGICAL_BITS


def logical(tso: int) -> int:
    """The counter within the millisecond."""
    return tso & LAST_LOGICAL


def tso_from_ms(ms: int, logical: int = 0) -> int:
    """The timestamp of a millisecond and a counter."""
    if not 0 <= logical <= LAST_LOGICAL:
        raise ValueError(f"The logical part {logical} must be from 0 to {LAST_LOGICAL}.")
    if ms < 0:
        raise ValueError(f"The physical part {ms} must not be before 1970.")
    return ms << LOGICAL_BITS | logical


def tso_to_datetime(tso: int) -> datetime:
    """The instant in UTC, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=physical_ms(tso))


def tso_from_datetime(instant: datetime, logical: int = 0) -> int:
    """The timestamp of an instant that knows its time zone; what is below a millisecond is cut."""
    if instant.utcoffset() is None:
        raise ValueError(f"{instant!r} has no time zone: give one, for example datetime.UTC.")
    return tso_from_ms((instant - _EPOCH) // _MILLISECOND, logical)
