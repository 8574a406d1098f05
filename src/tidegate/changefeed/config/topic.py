"""Topic names by table: `topic = "tidb_{schema}_{table}"` of a dispatch rule.

The form is TiCDC's: `[prefix]{schema}[middle][{table}][suffix]`, either placeholder may be absent.
What Kafka does not take in a topic name is made into something that it does, as TiCDC does it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_TOPIC_LENGTH = 249
"""Kafka's limit."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]")
_EXPRESSION = re.compile(
    r"[A-Za-z0-9._-]*(?:\{schema\})?(?:[A-Za-z0-9._-]*\{table\})?[A-Za-z0-9._-]*"
)
_RESERVED = {".": "_", "..": "__"}


def check_topic(name: str) -> str:
    """The name, if Kafka takes it for a topic; else ValueError."""
    if not _NAME.fullmatch(name) or len(name) > MAX_TOPIC_LENGTH or name in _RESERVED:
        raise ValueError(
            f"{name!r} is no topic name: use 1 to {MAX_TOPIC_LENGTH} of the characters "
            "A-Z, a-z, 0-9, dot, underscore and hyphen"
        )
    return name


@dataclass(frozen=True, slots=True)
class TopicExpression:
    """A topic name, or the pattern of one."""

    text: str

    @classmethod
    def parse(cls, text: str) -> TopicExpression:
        """Reads an expression; ValueError says what is wrong with it."""
        if "{" not in text and "}" not in text:
            return cls(check_topic(text))
        if "{column:" in text:
            raise ValueError("a topic by the value of a column is not supported")
        if not _EXPRESSION.fullmatch(text):
            raise ValueError(
                f"{text!r} is no topic expression: write [prefix]{{schema}}[middle]{{table}}"
                "[suffix], where the parts between use A-Z, a-z, 0-9, dot, underscore and hyphen"
            )
        return cls(text)

    def substitute(self, database: str, table: str) -> str:
        """The topic of a table."""
        name = self.text.replace("{schema}", _FORBIDDEN.sub("_", database))
        name = name.replace("{table}", _FORBIDDEN.sub("_", table))[:MAX_TOPIC_LENGTH]
        return _RESERVED.get(name, name)

    def may_be_of(self, topic: str, database: str) -> bool:
        """Whether a topic can be that of some table of a database."""
        pattern = re.escape(self.text.replace("{schema}", _FORBIDDEN.sub("_", database)))
        return bool(re.fullmatch(pattern.replace(re.escape("{table}"), _NAME.pattern), topic))
