"""Which topics a changefeed writes to: by name, or by patterns where dispatch rules name tables.

A pattern is a regular expression for whole topic names. It uses only what Python and Java read
alike, so that every reader of a feed takes the same topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.config.filter import IN_TOPICS, TableFilter
from tidegate.changefeed.config.topic import MAX_TOPIC_LENGTH, TopicExpression

_NAME_PART = IN_TOPICS + "*"
_LONGEST_NAME = 64
"""Characters that the name of a database or table has at most."""
_PLACEHOLDER = re.compile(r"\{(?:schema|table)\}")


@dataclass(frozen=True)
class Subscription:
    """The topics of a changefeed: `names`, and all others that `pattern` matches."""

    default: str
    names: tuple[str, ...]
    pattern: str | None = None
    unbounded: str | None = None
    """The pattern by the topic expressions alone, whatever the filter rules include."""

    @classmethod
    def of(cls, feed: ChangefeedConfig) -> Subscription:
        """What a changefeed writes to.

        `{schema}_{table}` alone would match topics of other applications too. The inclusions of
        the filter and of the dispatch rule bound it; exclusions do not, so that no topic is
        missed.
        """
        assert feed.topic is not None
        expressions = [rule.topic for rule in feed.dispatchers if rule.topic is not None]
        texts = dict.fromkeys([feed.topic, *(expression.text for expression in expressions)])
        names = tuple(text for text in texts if not _PLACEHOLDER.search(text))
        if len(names) == len(texts):
            return cls(feed.topic, names)
        unbounded = "|".join(_by_expression(TopicExpression(text)) for text in texts)
        return cls(feed.topic, names, "|".join(_bounded(feed)), unbounded)

    @property
    def text(self) -> str:
        """What identifies these topics; filter rules may change without changing it."""
        return ",".join(self.names) if self.unbounded is None else self.unbounded

    def matches(self, topic: str) -> bool:
        """Whether the changefeed may write to a topic."""
        return topic in self.names or (
            self._compiled is not None and self._compiled.fullmatch(topic) is not None
        )

    @cached_property
    def _compiled(self) -> re.Pattern[str] | None:
        return None if self.pattern is None else re.compile(self.pattern)


def _bounded(feed: ChangefeedConfig) -> Iterable[str]:
    """A pattern for the default topic and for each dispatch rule that has a topic."""
    assert feed.topic is not None
    case = feed.case_sensitive
    wanted = TableFilter.parse(feed.filter_rules, case_sensitive=case).in_topics()
    patterns = [_literal(feed.topic)]
    for rule in feed.dispatchers:
        if rule.topic is not None:
            matched = TableFilter.parse(rule.matcher, case_sensitive=case).in_topics()
            by_filter, by_rule = (_by_tables(rule.topic, each) for each in (wanted, matched))
            patterns.append(f"(?=(?:{by_filter})$)(?:{by_rule})")
    return dict.fromkeys(patterns)


def _by_tables(expression: TopicExpression, tables: Iterable[tuple[str, str]]) -> str:
    """The topics of some tables, whose names are as `in_topics` gives them."""
    literals = _PLACEHOLDER.split(expression.text)
    if sum(map(len, literals)) > MAX_TOPIC_LENGTH - 2 * _LONGEST_NAME:  # names may be cut
        return _by_expression(expression)
    patterns = []
    for database, table in tables:
        names = {"{schema}": database, "{table}": table}
        parts = re.split(r"(\{schema\}|\{table\})", expression.text)
        patterns.append("".join(names.get(part) or _literal(part) for part in parts))
    return "|".join(dict.fromkeys(patterns)) or _by_expression(expression)


def _by_expression(expression: TopicExpression) -> str:
    return _NAME_PART.join(map(_literal, _PLACEHOLDER.split(expression.text)))


def _literal(text: str) -> str:
    return re.sub(r"([.-])", r"\\\1", text)
