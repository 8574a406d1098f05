"""Events as lines for eyes: aligned, coloured on a terminal, bytes and times readable."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text

from tidegate.cli.source import Reading
from tidegate.cli.words import counted, visible
from tidegate.model import code_of, parse_type, tso_to_datetime

_STYLES = {
    "insert": "green",
    "update": "yellow",
    "delete": "red",
    "ddl": "bold magenta",
    "watermark": "dim",
    "schema": "cyan",
    "error": "bold white on red",
}
_MAX_VALUE = 40
_MAX_COLUMNS = 12


class EventPrinter:
    """Prints events one a line; long rows are cut to what fits the eye (JSON has them whole)."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(
            highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000
        )
        self._headed = False

    def print(self, event: dict[str, Any]) -> None:
        """One event."""
        if not self._headed:
            heads = f"{'part':>4} {'offset':>8}     {'commit time (UTC)':<23}  {'event':<9}  what"
            self._console.print(Text(heads, "bold"))
            self._headed = True
        number = event["event"]
        place = f"{event.get('partition', ''):>4} {event.get('offset', ''):>8}"
        line = Text(f"{place}{f'.{number}' if number > 0 else '':<5}", "dim")
        line.append(f"{_time(event.get('commitTs')):<23}  ", "dim")
        line.append(f"{event['kind']:<9}", _STYLES[event["kind"]])
        line.append("  ")
        line.append_text(_what(event))
        self._console.print(line)

    def summary(self, reading: Reading, messages: int, kinds: Counter[str]) -> None:
        """What was seen, in one line."""
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        how = " (guessed)" if reading.guessed else ""
        protocol = f" of {reading.describe()}{how}" if reading.protocol else ""
        line = f"{counted(messages, 'message')}{protocol}: {counts or 'no events'}"
        self._console.print(Text(line, "bold"))


def _time(commit_ts: int | None) -> str:
    if commit_ts is None:
        return ""
    return tso_to_datetime(commit_ts).strftime("%Y-%m-%d %H:%M:%S.%f")[:23]


def _table(event: dict[str, Any]) -> str:
    return ".".join(visible(event[part]) for part in ("database", "table") if part in event)


def _what(event: dict[str, Any]) -> Text:
    kind = event["kind"]
    if kind == "error":
        return Text(visible(event["error"]["reason"]), "red")
    if kind == "watermark":
        return Text(str(event["commitTs"]), "dim")
    text = Text()
    name = _table(event)
    if kind == "ddl":
        ddl = event["ddl"]
        text.append(f"{name + ': ' if name else ''}", "bold")
        return text.append(f"{visible(ddl.get('query', ''))}  [{visible(ddl.get('type', ''))}]")
    text.append(name, "bold")
    if kind == "schema":
        return text.append_text(_schema(event["schema"]))
    for flag in event.get("flags", ()):
        text.append(f" [{flag}]", "magenta")
    return text.append_text(_row(event))


def _schema(schema: dict[str, Any]) -> Text:
    if "tableSchema" in schema:
        table = schema["tableSchema"]
        columns = [f"{c['name']} {c['dataType']['mysqlType']}" for c in table["columns"]]
        return Text(f" version {table['version']}: {visible(', '.join(columns))}")
    columns = [f"{c['name']} {c.get('type', '')}" for c in schema["columns"]]
    return Text(f": {visible(', '.join(columns))}")


def _row(event: dict[str, Any]) -> Text:
    """Keys first; of an update the columns that changed, of others all."""
    after, before = event.get("after"), event.get("before")
    row = after if after is not None else before or {}
    types = event.get("types", {})
    keys = event.get("keys", [])
    text = Text()
    shown = 0
    names = [*keys, *(name for name in row if name not in keys)]
    for name in names:
        if name not in row:
            continue
        value = readable(row[name], types.get(name))
        if after is not None and before is not None and name not in keys:
            if before.get(name, row[name]) == row[name]:
                continue
            value = f"{readable(before[name], types.get(name))} → {value}"
        if shown == _MAX_COLUMNS:
            text.append(" …", "dim")
            break
        text.append(f" {visible(name)}=", "cyan" if name in keys else "dim")
        text.append(value)
        shown += 1
    return text


def readable(value: str | None, type_name: str | None) -> str:
    """A value for eyes: bytes as text or hex, control characters visible, long ones cut."""
    if value is None:
        return "NULL"
    if type_name is not None and code_of(parse_type(type_name).base)[1]:
        try:
            content = b64decode(value, validate=True)
        except ValueError:  # Simple's rows do not say what is base64, so that none is checked
            return f"{_cut(value)} (no base64)"
        text = _printable(content)
        if text is None:
            cut = f"… ({len(content)} bytes)" if len(content) > _MAX_VALUE // 2 else ""
            return f"0x{content[: _MAX_VALUE // 2].hex()}{cut}"
        value = text
    if value == "":
        return "''"
    return _cut(value)


def _cut(text: str) -> str:
    cut = f"… ({len(text)} characters)" if len(text) > _MAX_VALUE else ""
    return visible(text[:_MAX_VALUE]) + cut


def _printable(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
