"""TIMESTAMP strings from the zone of a dump's session to that of the feed."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

import pyarrow as pa

from tidegate.upstream.dump._scan import ScanError
from tidegate.upstream.dump.options import zone_of

_MAX_MINUTES = 1 << 18
_MINUTE = len("2020-02-20 02:20")


class ZoneShift:
    """Rewrites strings; zero dates stay as they are.

    A time that clocks show twice, when they are set back, is taken for the first of the two.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source = zone_of(source, "time_zone")
        self._target = zone_of(target, "feed_zone")
        self._target_name = target
        self.is_needed = source != target
        self._minutes: dict[str, str] = {}

    def from_utc(self) -> ZoneShift:
        """The shift of values that are in UTC, whatever the zone of the session was."""
        return ZoneShift("UTC", self._target_name)

    def array(self, array: Any) -> Any:
        """The strings of an array; ScanError for one that is not a time."""
        texts = array.to_pylist()
        for row, text in enumerate(texts):
            if text is not None:
                try:
                    texts[row] = self.text(text)
                except (ValueError, OverflowError):
                    raise ScanError(row, f"{text!r} is not a time") from None
        return pa.array(texts, pa.string())

    def text(self, text: str) -> str:
        """One value, with or without a fraction of a second."""
        if text.startswith("0000"):
            return text
        minute = text[:_MINUTE]
        shifted = self._minutes.get(minute)
        if shifted is not None:
            return shifted + text[_MINUTE:]
        whole, point, fraction = text.partition(".")
        moment = _moved(whole, self._source, self._target)
        result = f"{moment:%Y-%m-%d %H:%M:%S}"
        if result[_MINUTE:] == whole[_MINUTE:]:  # the two zones differ by whole minutes
            if len(self._minutes) >= _MAX_MINUTES:
                self._minutes.clear()
            self._minutes[minute] = result[:_MINUTE]
        return result + point + fraction


def _moved(text: str, source: tzinfo, target: tzinfo) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=source).astimezone(target)
