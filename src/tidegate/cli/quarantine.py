"""`tidegate quarantine`: the messages that could not be read, and another try at them."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.lakes import exclusive, reading, settings_of
from tidegate.cli.words import counted, say, say_json, visible

if TYPE_CHECKING:
    from tidegate.lake.lake import Lake
    from tidegate.lake.quarantine import BadMessage, Place
    from tidegate.spark.decoding import Reading

_SHOWN_BYTES = 512


def listed(*, limit: int | None, output: str, **options: Any) -> bool:
    """Every bad message in a line; whether there are none."""
    from tidegate.lake.quarantine import Quarantine

    with reading(settings_of(**options)) as lake:
        quarantine = Quarantine(lake)
        messages = quarantine.messages(limit=limit)
        count = len(messages) if limit is None else quarantine.count()
    for message in messages:
        if output == "json":
            say_json(_document(message, with_bytes=False))
        else:
            say(f"{_named(message.place)}  {message.code}: {message.reason}")
    if output == "text":
        say(f"quarantined: {counted(count, 'message')}" if count else "nothing is quarantined")
    return count == 0


def shown(place: str, *, output: str, **options: Any) -> None:
    """One bad message with its bytes."""
    from tidegate.lake.quarantine import Quarantine
    from tidegate.model import LakeError

    wanted = parse_place(place)
    with reading(settings_of(**options)) as lake:
        found = Quarantine(lake).messages(wanted)
    if not found:
        raise LakeError(f"No message at {wanted} is quarantined", "See `tidegate quarantine list`")
    if output == "json":
        say_json(_document(found[0]))
        return
    message = found[0]
    say(f"message  {message.place}")
    say(f"reason   {message.reason} ({message.code})")
    for name, content in (("key", message.key), ("value", message.value)):
        say(f"{name:<8} {_readable(content)}")


def retried(places: tuple[str, ...], *, output: str, **options: Any) -> bool:
    """Decodes bad messages again; whether all could be read."""
    from tidegate.lake.quarantine import Quarantine

    wanted = [parse_place(place) for place in places]
    told = {
        name: options.pop(name) for name in ("protocol", "encoding", "compression", "claim_check")
    }
    settings = settings_of(**options).remembered()
    with exclusive(settings) as lake:
        result = Quarantine(lake).retry(_reading(lake, told), wanted)
    if output == "json":
        document = {
            "event": "done",
            "read": [list(place) for place in result.read],
            "bad": [_document(message, with_bytes=False) for message in result.bad],
            "late": [
                {"database": name[0], "table": name[1], "events": count}
                for name, count in result.late.items()
            ],
        }
        say_json(document)
    else:
        for message in result.bad:
            say(f"still bad  {_named(message.place)}  {message.reason}")
        say(f"{counted(len(result.read), 'message')} read, {len(result.bad):,} still bad")
        for name, count in result.late.items():
            say(f"late: the table had gone past {counted(count, 'event')} of {'.'.join(name)}")
        if result.read:
            how = "puts the tables right" if result.late else "goes on with them"
            say(f"start `tidegate mirror` again: it {how}")
    return not result.bad


def _reading(lake: Lake, told: dict[str, Any]) -> Reading:
    """How the feed's messages are read, unless it is told otherwise now."""
    from tidegate.spark.decoding import Reading

    state = lake.snapshots.state()
    feed = (lake.claim() or {"feed": {}})["feed"] if state is None else state.feed
    if told["protocol"] is None and "protocol" not in feed:
        raise click.UsageError("The lake does not know its feed yet: name its --protocol.")
    return Reading(
        told["protocol"] or feed["protocol"],
        told["encoding"],
        told["compression"] or feed.get("compression"),
        told["claim_check"],
    )


# --- places and bytes -----------------------------------------------------------------------------


def parse_place(text: str) -> Place:
    """PARTITION:OFFSET, or TOPIC:PARTITION:OFFSET."""
    from tidegate.lake.quarantine import Place

    match = re.fullmatch(r"(?:(.*):)?(\d+):(\d+)", text, re.DOTALL)
    if match is None:
        raise click.UsageError(f"{text!r} is no place: write TOPIC:PARTITION:OFFSET.")
    return Place(match[1] or "", int(match[2]), int(match[3]))


def _named(place: Place) -> str:
    return ":".join(str(part) for part in place if part != "")


def _document(message: BadMessage, *, with_bytes: bool = True) -> dict[str, Any]:
    document: dict[str, Any] = {
        **message.place._asdict(),
        "code": message.code,
        "reason": message.reason,
    }
    if with_bytes:
        for name, content in (("key", message.key), ("value", message.value)):
            document[name] = None if content is None else b64encode(content).decode()
    return document


def _readable(content: bytes | None) -> str:
    if content is None:
        return "none"
    head = content[:_SHOWN_BYTES]
    more = f" … ({len(content):,} bytes)" if len(content) > _SHOWN_BYTES else ""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return head.hex(" ") + more
    return visible(text) + more
