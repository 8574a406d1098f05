"""The file `metadata` of a dump: the instant T that its rows are of.

Dumpling writes it once, at the end, if the dump succeeded; so a dump without it, or without its
last line, was cut off.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from tidegate.model import DumpError, tso_from_datetime, tso_to_datetime
from tidegate.upstream.dump.options import DumpOptions, zone_of

_BLOCK = re.compile(r"^SHOW (?:MASTER|BINARY LOG) STATUS:([^\n]*)\n((?:\t[^\n]*\n)*)", re.MULTILINE)
_FINISHED = re.compile(r"^Finished dump at: ", re.MULTILINE)
_TIDB_LOG = "tidb-binlog"
_FIRST_YEAR = 2014  # no TSO of a TiDB cluster is older
_AGAIN = "Make the dump again, to its end"
_GIVE = "Give the instant of the dump as `snapshot`: a TSO"


def snapshot_ts(place: str, text: str | None, options: DumpOptions) -> int:
    """T as a TSO, of the text of `metadata` (None if there is none) or as the options give it."""
    given = options.snapshot
    if text is None:
        if given is None:
            raise DumpError(
                place,
                "there is no file `metadata`, which Dumpling writes when a dump is complete",
                f"{_AGAIN}. An export of TiDB Cloud has no such file: give its instant as "
                "`snapshot`, a TSO or a time",
            )
        return _instant(place, str(given), options)
    if not _FINISHED.search(text):
        raise DumpError(place, "its `metadata` does not say that the dump was finished", _AGAIN)
    if given is not None:
        return _instant(place, str(given), options)
    blocks = [_members(block[2]) for block in _BLOCK.finditer(text)]
    positions = {block.get("Pos", "") for block in blocks}
    logs = {block.get("Log", "") for block in blocks}
    if not positions:
        raise DumpError(place, "its `metadata` has no position", _GIVE)
    if logs != {_TIDB_LOG}:
        raise DumpError(
            place,
            f"it is not a dump of TiDB: its position is in {', '.join(sorted(logs))}",
            "Dump the TiDB cluster that the changefeed is of",
        )
    if len(positions) > 1:
        raise DumpError(
            place,
            f"its rows were read between {' and '.join(sorted(positions))}, not at one instant",
            "Make the dump again with --consistency snapshot",
        )
    return _instant(place, positions.pop(), options)


def _members(block: str) -> dict[str, str]:
    pairs = (line.strip().partition(":") for line in block.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _instant(place: str, text: str, options: DumpOptions) -> int:
    if text.isascii() and text.isdigit():
        tso = int(text)
        if tso < 1 << 63 and tso_to_datetime(tso).year >= _FIRST_YEAR:
            return tso
        raise DumpError(place, f"its position {text} is not a TSO", _GIVE)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DumpError(
            place, f"its position {text!r} is neither a TSO nor a time", _GIVE
        ) from None
    if moment.tzinfo is None:
        moment = _only(place, moment, zone_of(options.time_zone, "time_zone"))
    return tso_from_datetime(moment)


def _only(place: str, moment: datetime, zone: tzinfo) -> datetime:
    """The moment that clocks in the zone showed so."""
    local = moment.replace(tzinfo=zone)
    is_shown = local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == moment
    is_once = local.utcoffset() == local.replace(fold=1).utcoffset()
    if not (is_shown and is_once):
        raise DumpError(place, f"clocks in {zone} did not show {moment} exactly once", _GIVE)
    return local
