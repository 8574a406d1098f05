"""The decoders as the golden tests call them: the one place to change if their face changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from tests.support.corpus import Message, Variant
from tests.support.table_schema import without_defaults

Json = dict[str, Any]
PROTOCOLS = {"open": "open-protocol", "canal": "canal-json", "simple": "simple", "craft": "craft"}
POSITION = ("partition", "offset", "event")
ROW_KINDS = ("insert", "update", "delete")

# Members of the JSON form that say how an event was read, not what it is.
_ASIDE = frozenset({*POSITION, "topic", "shape", "claimCheck"})


def require(protocol: str) -> None:
    """Skips the test where the protocol has no module yet."""
    pytest.importorskip(f"tidegate.wire.{protocol}", exc_type=ModuleNotFoundError)


def offsets(messages: Sequence[Message]) -> list[int]:
    """Offsets as Kafka gives them: each partition counts its own."""
    counters: dict[int, Iterator[int]] = {}
    return [next(counters.setdefault(message.partition, count())) for message in messages]


def decode(
    protocol: str,
    messages: Sequence[Message],
    *,
    batch_size: int | None = None,
    encoding: str | None = None,
    compression: str | None = None,
    claim_check: Callable[[str], bytes] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Change batches of the messages, `batch_size` messages at a time (default: all at once)."""
    from tidegate.wire import decode_batch

    at = offsets(messages)
    step = batch_size or max(len(messages), 1)
    for start in range(0, len(messages), step):
        part = messages[start : start + step]
        yield decode_batch(
            PROTOCOLS[protocol],
            pa.array([message.key for message in part], pa.binary()),
            pa.array([message.value for message in part], pa.binary()),
            partitions=pa.array([message.partition for message in part], pa.int32()),
            offsets=pa.array(at[start : start + step], pa.int64()),
            encoding=encoding,
            compression=compression,
            claim_check=claim_check,
        )


def decode_variant(
    variant: Variant,
    messages: Sequence[Message],
    *,
    batch_size: int | None = None,
    claim_check: Callable[[str], bytes] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Change batches of messages of a golden file, read as its settings ask."""
    return decode(
        variant.protocol,
        messages,
        batch_size=batch_size,
        encoding=variant.encoding,
        compression=variant.compression,
        claim_check=claim_check,
    )


def documents(batches: Iterable[pa.RecordBatch]) -> list[Json]:
    """The events in the form of `tidegate inspect --output json`."""
    from tidegate.wire import to_json_events

    return list(to_json_events(batches))


def content(document: Json) -> Json:
    """What a document says, without where and how it was read; keys have no order there."""
    said = {name: value for name, value in document.items() if name not in _ASIDE}
    if "keys" in said:
        said["keys"] = sorted(said["keys"])
    if "schema" in said:
        said["schema"] = {name: without_defaults(schema) for name, schema in said["schema"].items()}
    flags = [flag for flag in said.pop("flags", ()) if flag == "handle-key-only"]
    return said | ({"flags": flags} if flags else {})


def is_bootstrap(document: Json) -> bool:
    """A table schema on its own, not one that comes with a DDL."""
    return bool(document["kind"] == "schema")


def difference(expected: Sequence[Json], actual: Sequence[Json]) -> str | None:
    """The first event that is not as expected, in words; None if all are."""
    for number, (left, right) in enumerate(zip(expected, actual, strict=False)):
        if left != right:
            who = {name: right.get(name) for name in ("kind", "commitTs", "database", "table")}
            return "\n".join((f"event {number} {who}", *_differences("", left, right)))
    if len(expected) != len(actual):
        return f"{len(actual)} events, not {len(expected)}"
    return None


def _differences(path: str, expected: Any, actual: Any) -> Iterator[str]:
    """Each member that is not as expected, by its path."""
    if expected == actual:
        return
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in {**expected, **actual}:
            yield from _differences(f"{path}.{name}", expected.get(name), actual.get(name))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for place, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(f"{path}[{place}]", left, right)
    else:
        yield f"  {path[1:]}: {_shortened(actual)}, expected {_shortened(expected)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def assert_same(expected: Sequence[Json], actual: Sequence[Json], order: str | None = None) -> None:
    """Fails with the first event that is not as expected; `order`: also of its columns."""
    __tracebackhide__ = True
    found = difference(expected, actual)
    if found is None and order is not None:
        found = misordered(expected, actual)
    if found is not None:
        pytest.fail(found)


def misordered(expected: Sequence[Json], actual: Sequence[Json]) -> str | None:
    """The first event whose columns do not stand in the expected order; None if all do."""
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        for side in ("after", "before"):
            due = list(left.get(side, ()))
            found = [name for name in right.get(side, ()) if name in due]
            if due != found:
                return f"event {number}: {side} {found}, not {due}"
    return None
