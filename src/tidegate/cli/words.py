"""What several commands say in the same words, and the one place where text is made safe to show.

Names and values of tables come from others: whatever a terminal would obey is shown, not sent.
"""

from __future__ import annotations

import json
from typing import Any

import click

_UNSAFE_IN_JSON = {
    code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E, 0x2066, 0x2067)
}
"""What JSON leaves as it is, and a terminal, or a reader of lines, takes for something else."""


def visible(text: str) -> str:
    """The text in one line, with every control character spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(text: str, *, err: bool = False, **style: Any) -> None:
    """Writes one line for eyes; `style` is click's."""
    click.secho(visible(text), err=err, **style)


def json_line(document: Any) -> str:
    """One line for programs, that a terminal may show as well."""
    return json.dumps(document, ensure_ascii=False).translate(_UNSAFE_IN_JSON) + "\n"


def say_json(document: Any, *, err: bool = False) -> None:
    """Writes one line for programs."""
    click.echo(json_line(document), err=err, nl=False)


def counted(number: int, noun: str) -> str:
    """How many of a thing: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def waiting_line(entry: dict[str, Any]) -> str:
    """The rows of a table for which no schema has come yet."""
    rows, table = counted(entry["rows"], "row"), f"{entry['database']}.{entry['table']}"
    return f"waiting: {rows} of {table} for schema version {entry['version']}"


def foreign_line(topic: str, messages: int) -> str:
    """A topic of another application, which a subscription by pattern matches too."""
    which = "its only message cannot" if messages == 1 else f"none of its {messages:,} messages can"
    return f"topic {topic}: {which} be read; it is left out"
