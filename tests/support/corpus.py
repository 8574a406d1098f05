"""The golden corpus: what TiCDC's own encoders wrote, and what they were given to write.

A file is named SCEN.VARIANT, with `new/` before it for the new architecture of TiCDC, for example
`types.open.b16` or `new/bank.canal.rowkey.stream`. tests/golden/README.md tells what the names mean
and how the archives are laid out.
"""

import io
import json
import lzma
import tarfile
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).parent.parent / "golden"
COMPRESSIONS = ("snappy", "lz4")


class Message(NamedTuple):
    """One message; `note` is what its maker said of it, and not to be relied on."""

    partition: int
    key: bytes | None
    value: bytes | None
    note: str = ""


class Poison(NamedTuple):
    """A mutated message, and what TiCDC's own decoder did with it.

    `reference` is ok, error, panic or timeout. Where it is ok, `events` are what it saw, in the form
    of the truth files, or None: the same as it saw in the message `base` that was mutated.
    """

    line: int
    message: Message
    base: int
    mutation: str
    reference: str
    events: list[dict[str, Any]] | None
    same: bool


@dataclass(frozen=True)
class Variant:
    """What a golden file's name says of it."""

    name: str
    generation: str  # classic or new
    scenario: str
    protocol: str  # open, canal, simple or craft
    encoding: str | None  # json or avro, Simple only
    options: frozenset[str]
    compression: str | None
    stream: bool
    messages: int

    @property
    def truth(self) -> str:
        """The name of its truth for `events`."""
        return f"new/{self.scenario}" if self.generation == "new" else self.scenario


def _parse_name(name: str, messages: int) -> Variant:
    folder, _, base = name.rpartition("/")
    scenario, protocol, *words = base.split(".")
    encoding = words.pop(0) if protocol == "simple" else None
    compression = next((word for word in words if word in COMPRESSIONS), None)
    return Variant(
        name=name,
        generation=folder or "classic",
        scenario=scenario,
        protocol=protocol,
        encoding=encoding,
        options=frozenset(words) - {compression, "stream"},
        compression=compression,
        stream="stream" in words,
        messages=messages,
    )


@lru_cache(maxsize=1)
def _index() -> dict[str, Variant]:
    rows = (line.split("\t") for line in (GOLDEN / "INDEX").read_text().splitlines())
    return {name: _parse_name(name, int(count)) for name, count in rows}


def variants() -> list[Variant]:
    """Every golden file that a decoder is to read rightly: all but `poison` and `aliasbug`."""
    return [
        variant
        for variant in _index().values()
        if variant.scenario != "poison" and variant.generation != "aliasbug"
    ]


def variant(name: str) -> Variant:
    """What is known of one golden file."""
    return _index()[name]


@lru_cache(maxsize=2)
def _archive(scenario: str) -> dict[str, bytes]:
    data = lzma.decompress((GOLDEN / f"{scenario}.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: data[entry.offset_data :][: entry.size] for entry in tar}


def _member(name: str) -> bytes:
    scenario = name.rpartition("/")[2].partition(".")[0]
    return _archive(scenario)[name]


def parse_messages(data: bytes) -> list[Message]:
    """Framed messages: a head line `PARTITION KEYSIZE VALUESIZE NOTE`, key, value, a line end."""
    found = []
    position = 0
    while position < len(data):
        end = data.index(b"\n", position)
        partition, *sizes, note = data[position:end].split(b" ", 3)
        position = end + 1
        parts: list[bytes | None] = []
        for size in sizes:
            end = position + (0 if size == b"-" else int(size))
            parts.append(None if size == b"-" else data[position:end])
            position = end
        found.append(Message(int(partition), parts[0], parts[1], note.decode()))
        position += 1
    return found


@lru_cache(maxsize=4)
def messages(name: str) -> list[Message]:
    """The messages of a golden file, in the order in which they were sent."""
    return parse_messages(_member(f"{name}.msgs"))


@lru_cache(maxsize=4)
def events(scenario: str) -> list[dict[str, Any]]:
    """The truth of a scenario (`types`, `new/types`): its events in commit order."""
    return [json.loads(line) for line in _member(f"{scenario}.events.jsonl").splitlines()]


def final(scenario: str) -> dict[str, Any]:
    """The tables of a scenario after its last statement."""
    found: dict[str, Any] = json.loads(_member(f"{scenario}.final.json"))
    return found


def statements(scenario: str) -> str:
    """The SQL of a scenario."""
    return _member(f"{scenario}.sql").decode()


def claim_check_loader(name: str) -> Callable[[str], bytes]:
    """The store of a golden file's claim-check objects, as a function of their location."""
    folder, _, base = name.rpartition("/")
    root = f"{folder}/claimcheck/{base}/".lstrip("/")

    def load(location: str) -> bytes:
        return _member_of(base, root + location.rpartition("/")[2])

    return load


def _member_of(base: str, name: str) -> bytes:
    return _archive(base.partition(".")[0])[name]


def poison(name: str) -> Iterator[Poison]:
    """The mutated messages of `poison.open.b16` and the like."""
    seen = {
        entry["line"]: entry["events"]
        for entry in map(json.loads, _member(f"{name}.events.jsonl").splitlines())
    }
    for line, message in enumerate(messages(name)):
        told = json.loads(message.note)
        yield Poison(
            line=line,
            message=message._replace(note=told["note"]),
            base=told["base"],
            mutation=told["mutation"],
            reference=told["ref"],
            events=seen.get(line),
            same=told.get("same", False),
        )


def craft_sizes(*, mended: bool = False) -> list[dict[str, Any]]:
    """Craft's published size benchmark: events, and their bytes in Craft, JSON and protobuf.

    `mended`: with the FLOAT values of Craft written as they should be.
    """
    name = "craft_seed.floatfixed.json" if mended else "craft_seed.json"
    found: list[dict[str, Any]] = json.loads(_member(name))
    return found


def case_messages(form: dict[str, Any]) -> list[Message]:
    """The messages of one form of a case of `craft_sizes`."""
    decoded = ((b64decode(entry["key"]), b64decode(entry["value"])) for entry in form["messages"])
    return [Message(0, key or None, value, "") for key, value in decoded]
