"""Decoding and encoding of every protocol against JSON and Avro libraries, on golden messages.

One process, one core. Ours: Arrow binary arrays in, change batch out (and back). The peers do less:
they stop at Python dicts, of which somebody would still have to make columns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from bench.timing import best_of
from tests.support import corpus
from tests.support.avro_schema import SIMPLE_AVRO_SCHEMA
from tidegate.wire import decode_batch, encode_batch

SCENARIOS = ("tall8", "tall20")
MESSAGES = 10_000
ROW_KINDS = ("insert", "update", "delete")

# The reference, TiCDC's own codec in Go, in µs of CPU an event on tall20, on one core of another
# machine of the same kind: not measured in this run, so no ratios are made of them.
REFERENCE_IN_GO = {
    ("open-protocol", "decode"): 50.451,
    ("open-protocol", "encode"): 16.838,
    ("canal-json", "decode"): 41.192,
    ("canal-json", "encode"): 8.849,
    ("simple json", "decode"): 20.767,
    ("simple json", "encode"): 16.569,
    ("simple avro", "decode"): 21.967,
    ("simple avro", "encode"): 13.368,
    ("craft", "decode"): 16.009,
    ("craft", "encode"): 4.390,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    work: str
    protocol: str
    scenario: str
    events: int
    bytes: int
    ours_us: float
    peer_us: float
    peer: str
    target: float

    @property
    def ratio(self) -> float:
        """How many times faster than the peer."""
        return self.peer_us / self.ours_us

    def document(self) -> dict[str, Any]:
        """For `--output json`."""
        go = REFERENCE_IN_GO.get((self.protocol, self.work.split()[0]))
        return asdict(self) | {
            "ratio": round(self.ratio, 2),
            "megabytes_per_second": round(self.bytes / self.events / self.ours_us, 1),
            "reference_go_us": go if self.scenario == "tall20" else None,
        }


@dataclass(frozen=True, slots=True)
class _Messages:
    keys: pa.Array | None
    values: pa.Array

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in (self.keys, self.values) if array is not None)


def repeated(messages: list[corpus.Message]) -> list[corpus.Message]:
    """Exactly MESSAGES messages; files of batched protocols, which have fewer, as they are."""
    if len(messages) < MESSAGES // 4:
        return messages
    times = -(-MESSAGES // len(messages))
    return (messages * times)[:MESSAGES]


def arrow_of(messages: list[corpus.Message]) -> _Messages:
    keys = [message.key for message in messages]
    return _Messages(
        None if all(key is None for key in keys) else pa.array(keys, pa.binary()),
        pa.array([message.value for message in messages], pa.binary()),
    )


def _open_parts(messages: list[corpus.Message]) -> list[bytes]:
    """The JSON of every key and value inside open-protocol messages."""
    parts = []
    for message in messages:
        for data, position in ((message.key, 8), (message.value, 0)):
            while data and position < len(data):
                length = int.from_bytes(data[position : position + 8], "big")
                if length:
                    parts.append(data[position + 8 : position + 8 + length])
                position += 8 + length
    return parts


def _load_all(parts: list[bytes]) -> Callable[[], object]:
    def load() -> None:
        for part in parts:
            orjson.loads(part)

    return load


def _dump_all(documents: list[Any]) -> Callable[[], object]:
    def dump() -> None:
        for document in documents:
            orjson.dumps(document)

    return dump


def _read_avro(values: list[bytes]) -> Callable[[], object]:
    schema = fastavro.parse_schema(SIMPLE_AVRO_SCHEMA)

    def read() -> None:
        for value in values:
            fastavro.schemaless_reader(BytesIO(value), schema, None)

    return read


def _shuffled(document: Any, chance: random.Random) -> Any:
    """The same JSON with the members of every object in another order."""
    if isinstance(document, dict):
        members = list(document.items())
        chance.shuffle(members)
        return {name: _shuffled(value, chance) for name, value in members}
    if isinstance(document, list):
        return [_shuffled(value, chance) for value in document]
    return document


def _shuffle_messages(protocol: str, messages: list[corpus.Message]) -> list[corpus.Message]:
    chance = random.Random(20)

    def again(text: bytes) -> bytes:
        shuffled = _shuffled(json.loads(text), chance)
        return json.dumps(shuffled, separators=(",", ":"), ensure_ascii=False).encode()

    def framed(data: bytes, start: int) -> bytes:
        parts = [data[:start]]
        position = start
        while position < len(data):
            length = int.from_bytes(data[position : position + 8], "big")
            event = data[position + 8 : position + 8 + length]
            event = again(event) if event else event
            parts += [len(event).to_bytes(8, "big"), event]
            position += 8 + length
        return b"".join(parts)

    if protocol == "open-protocol":
        return [
            message._replace(
                key=framed(message.key or b"", 8), value=framed(message.value or b"", 0)
            )
            for message in messages
        ]
    return [message._replace(value=again(message.value or b"")) for message in messages]


@dataclass(frozen=True, slots=True)
class _Case:
    label: str
    protocol: str
    file: str
    peer: str
    decode_target: float
    encode_target: float
    options: dict[str, Any]


CASES = (
    _Case("canal-json", "canal-json", "canal.ext", "orjson", 6, 1, {"enable_tidb_extension": True}),
    _Case("open-protocol", "open-protocol", "open.b16", "orjson", 8, 1, {}),
    _Case("simple json", "simple", "simple.json", "orjson", 6, 1, {}),
    _Case("simple avro", "simple", "simple.avro", "fastavro", 20, 1, {"encoding_format": "avro"}),
    _Case("craft", "craft", "craft.b16", "orjson of canal-json", 10, 1, {}),
)
GENERAL_TARGET = 2.0


def run(turns: int) -> Iterator[Result]:
    """Every line of the table, one after the other."""
    for case in CASES:
        for scenario in SCENARIOS:
            yield _decode(case, scenario, turns)
    for case in CASES[:3]:
        for scenario in SCENARIOS:
            yield _decode(case, scenario, turns, shuffle=True)
    for case in CASES:
        for scenario in SCENARIOS:
            yield _encode(case, scenario, turns)


def _rows(batch: pa.RecordBatch) -> int:
    kinds = batch.column("kind").to_pylist()
    if "error" in kinds:
        raise AssertionError("the benchmark's messages must all be readable")
    return sum(kind != "schema" for kind in kinds)


def _decode(case: _Case, scenario: str, turns: int, *, shuffle: bool = False) -> Result:
    messages = repeated(corpus.messages(f"{scenario}.{case.file}"))
    if shuffle:
        messages = _shuffle_messages(case.protocol, messages)
    arrow = arrow_of(messages)
    events = _rows(decode_batch(case.protocol, arrow.keys, arrow.values))
    if case.peer == "fastavro":
        peer = _read_avro([message.value or b"" for message in messages])
        peer_events = events
    elif case.protocol == "open-protocol":
        peer = _load_all(_open_parts(messages))
        peer_events = events
    elif case.protocol == "craft":
        canal = corpus.messages(f"{scenario}.canal.ext")
        peer = _load_all([message.value or b"" for message in canal])
        peer_events = len(canal)
    else:
        peer = _load_all([message.value or b"" for message in messages])
        peer_events = events
    pair = best_of(turns, lambda: decode_batch(case.protocol, arrow.keys, arrow.values), peer)
    return Result(
        "decode, keys shuffled" if shuffle else "decode",
        case.label,
        scenario,
        events,
        arrow.size,
        pair.ours / events * 1e6,
        pair.peer / peer_events * 1e6,
        case.peer,
        GENERAL_TARGET if shuffle else case.decode_target,
    )


def _encode(case: _Case, scenario: str, turns: int) -> Result:
    """The peer dumps ready dicts of the same events: of the same protocol where it is JSON, of
    Canal-JSON for Craft, of Simple's JSON for its Avro."""
    messages = repeated(corpus.messages(f"{scenario}.{case.file}"))
    arrow = arrow_of(messages)
    batch = decode_batch(case.protocol, arrow.keys, arrow.values)
    events = _rows(batch)
    if case.protocol == "open-protocol":
        documents = [orjson.loads(part) for part in _open_parts(messages)]
        peer_events = events
    else:
        other = {"craft": "canal.ext", "simple": "simple.json"}.get(case.protocol, case.file)
        same = corpus.messages(f"{scenario}.{other}")
        documents = [orjson.loads(message.value or b"") for message in same]
        peer_events = len(same)

    def ours() -> pa.RecordBatch:
        return encode_batch(case.protocol, batch, build_ts=0, **case.options)

    size = ours().nbytes
    pair = best_of(turns, ours, _dump_all(documents))
    return Result(
        "encode",
        case.label,
        scenario,
        events,
        size,
        pair.ours / events * 1e6,
        pair.peer / peer_events * 1e6,
        "orjson"
        if case.protocol in ("canal-json", "open-protocol")
        else "orjson of the same events",
        case.encode_target,
    )
