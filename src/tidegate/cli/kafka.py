"""What the command line says about Kafka: sink URIs, and where reading starts."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import click

from tidegate.changefeed.config.changefeed import ChangefeedConfig, SinkUri
from tidegate.source.topic_reader import Start

_AGE = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def is_kafka(source: str) -> bool:
    """Whether SOURCE or DEST names a topic."""
    return source.startswith(("kafka://", "kafka+ssl://"))


def connection_of(source: str) -> tuple[ChangefeedConfig, bool]:
    """The settings of a sink URI, and whether it names the protocol."""
    uri = SinkUri.parse(source)
    if uri.protocol is not None:
        return ChangefeedConfig.from_uri(uri), True
    # Any protocol serves: only the connection counts until messages have been looked at.
    named = replace(uri, parameters={**uri.parameters, "protocol": "open-protocol"})
    return ChangefeedConfig.from_uri(named), False


def parse_start(offset: int | None, text: str | None, now: datetime | None = None) -> Start:
    """From --from-offset (below 0: from the end) or --from-time, a time or an age (15m)."""
    if offset is not None and text is not None:
        raise click.UsageError("give --from-offset or --from-time, not both.")
    if text is None:
        return Start(offset)
    try:
        if match := _AGE.fullmatch(text.strip()):
            age = timedelta(**{_UNITS[match[2]]: int(match[1])})
            moment = (now or datetime.now(UTC)) - age
        else:
            moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--from-time {text!r}: write 2026-01-31T12:00:00, which is UTC unless it "
            "says otherwise, or an age: 90s, 15m, 2h, 1d."
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Start(None, round(moment.timestamp() * 1000))
