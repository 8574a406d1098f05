"""How a dump was written, which nothing in it records: Dumpling's options, with its defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.model import ConfigError

DIALECTS = {"": "raw", "snowflake": "hex", "redshift": "hex", "bigquery": "base64"}
"""How each --csv-output-dialect writes binary values."""

_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})")
_NUMBER = re.compile(r"[-+.\deE]+")
_ESCAPED_AS = "0nr\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    r"""Options of a dump; each has the name of Dumpling's flag.

    `time_zone` is that of Dumpling's session (the server's default, or `--params time_zone=…`), in
    which TIMESTAMPs are written; `feed_zone` that of the changefeed, in which they are read.
    `snapshot` replaces the position in `metadata`, which TiDB Cloud's exports do not have: a TSO,
    or a time in `time_zone`. `header` None: it is detected. `line_terminator` empty: LF or CR LF.
    """

    time_zone: str = "UTC"
    feed_zone: str = "UTC"
    snapshot: int | str | None = None
    header: bool | None = None
    separator: str = ","
    delimiter: str = '"'
    null_value: str = "\\N"
    line_terminator: str = ""
    escape_backslash: bool = True
    dialect: str = ""

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            known = ", ".join(filter(None, DIALECTS))
            raise ConfigError("dialect", f"{self.dialect!r} is not one of {known}")
        if not self.separator:
            raise ConfigError("separator", "it is empty")
        zone_of(self.time_zone, "time_zone")
        zone_of(self.feed_zone, "feed_zone")
        if _NUMBER.fullmatch(self.null_value):
            raise ConfigError("null_value", "NULL could not be told from a number")
        if self.delimiter:
            if self.null_value.startswith(self.delimiter):
                raise ConfigError("null_value", "NULL could not be told from a quoted value")
            return
        if not self.escape_backslash:
            raise ConfigError(
                "escape_backslash",
                "a dump without a delimiter and without escapes cannot be read safely: make one "
                "with --csv-delimiter or --escape-backslash",
            )
        if self.line_terminator[:1] not in ("", "\r", "\n"):
            raise ConfigError("line_terminator", "without a delimiter it must start with CR or LF")
        first, second = self.null_value[:1], self.null_value[1:2]
        if first != "\\" or second in (*_ESCAPED_AS, self.separator[0], ""):
            raise ConfigError("null_value", "without a delimiter it must be like \\N")

    @property
    def binary_form(self) -> str:
        """How binary values are written in CSV: raw, hex or base64."""
        return DIALECTS[self.dialect]


def zone_of(name: str, setting: str) -> tzinfo:
    """The zone of a name (`Asia/Shanghai`) or an offset (`+08:00`)."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        shift = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        if shift < timedelta(hours=24):
            return timezone(-shift if offset[1] == "-" else shift)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            setting, f"there is no zone {name!r}: write Asia/Shanghai or +08:00"
        ) from None


def is_fixed(name: str) -> bool:
    """Whether clocks in a zone are never changed."""
    return isinstance(zone_of(name, "time_zone"), timezone) or name in ("UTC", "Etc/UTC", "GMT")
