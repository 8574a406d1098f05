"""Mutated messages: 5,000 of each of three protocols, and what TiCDC's own decoders made of them.

Ours never fails as a whole. Where TiCDC reads a message, ours reads the same or refuses with a reason (it checks more);
where TiCDC refuses or panics, ours may do as it likes with that message. EXCUSED lists all else, with the reason.
"""

import base64
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support import corpus, decoding
from tests.support.corpus import Message, Poison
from tests.support.decoding import ROW_KINDS

Json = dict[str, Any]

FLOAT, VECTOR = 4, 225

# How many of the messages that TiCDC reads ours must read alike, out of how many.
FILES = {
    "poison.open.b16": ("open", 350, 592),
    "poison.canal.ext": ("canal", 480, 1391),
    "poison.craft.b16": ("craft", 950, 1816),
}
EACH = pytest.mark.parametrize("name", FILES)


class Differs(Exception):
    """Ours reads something else than TiCDC."""


def _excused_value(protocol: str, theirs: Json, ours: str | None, row: Json) -> str | None:
    """Why a value may differ."""
    if protocol == "craft" and theirs["t"] == VECTOR:
        return "TiCDC's Craft decoder reads a VECTOR as NULL"
    if (
        protocol == "craft"
        and theirs["t"] == FLOAT
        and ours is None
        and "corrupted" in row["flags"]
    ):
        return "Craft's FLOAT bytes are spoiled: what is no number is NULL, and the row says so"
    return None


COMMIT_TS = "Canal-JSON without commitTs: TiCDC says 0, ours has the milliseconds of `es`"
OLD_VALUES = "Canal-JSON: TiCDC fills in old values that are not there with the new ones"


@lru_cache(maxsize=3)
def poisons(name: str) -> list[Poison]:
    return list(corpus.poison(name))


def bases(name: str) -> list[Message]:
    """The messages that were mutated."""
    return corpus.messages(name.replace("poison", "types"))


def by_message(protocol: str, messages: Sequence[Message]) -> list[list[Json]]:
    """For each message its events, all read in one batch."""
    found: list[list[Json]] = [[] for _ in messages]
    for document in decoding.documents(decoding.decode(protocol, messages)):
        found[document["offset"]].append(document)
    return found


@EACH
def test_what_ticdc_reads_ours_reads_alike_or_refuses(name: str) -> None:
    protocol, least, readable = FILES[name]
    decoding.require(protocol)
    found = by_message(protocol, [poison.message for poison in poisons(name)])
    unmutated = by_message(protocol, bases(name))
    counts: Counter[str] = Counter()
    wrong = {}
    for poison, ours in zip(poisons(name), found, strict=True):
        refused = any(event["kind"] == "error" for event in ours)
        if poison.reference != "ok":
            verdict = (
                "refused by both" if refused else f"read, though TiCDC's is {poison.reference}"
            )
            counts[verdict] += 1
        elif refused:
            counts["refused, though TiCDC reads it"] += 1
        else:
            try:
                counts[_agreement(protocol, poison, ours, unmutated[poison.base])] += 1
            except Differs as difference:
                wrong[poison.line] = f"{poison.mutation}: {difference}"

    print(name, *(f"{count:6} {verdict}" for verdict, count in counts.most_common()), sep="\n  ")
    assert wrong == {}
    assert counts["read alike"] >= least
    assert sum(poison.reference == "ok" for poison in poisons(name)) == readable


def _agreement(protocol: str, poison: Poison, ours: list[Json], unmutated: list[Json]) -> str:
    """`read alike`, or why not; raises Differs if there is no excuse."""
    if poison.same:
        return _as_unmutated(protocol, ours, unmutated)
    assert poison.events is not None
    return _as_ticdc(protocol, poison.events, ours)


def _as_unmutated(protocol: str, ours: list[Json], unmutated: list[Json]) -> str:
    """TiCDC reads the mutated message as it reads the base; so must ours."""
    _check(len(ours) == len(unmutated), f"{len(ours)} events, not {len(unmutated)}")
    excuses = []
    for left, right in zip(unmutated, ours, strict=True):
        for member in ("kind", "commitTs", "database", "table"):
            _check(left.get(member) == right.get(member), f"{member} {right.get(member)!r}")
        query = left.get("ddl", {}).get("query")
        _check(query == right.get("ddl", {}).get("query"), f"query, not {query!r}")
        for side in ("after", "before"):
            told, read = left.get(side), right.get(side)
            if told == read:
                continue
            if protocol == "canal" and side == "before" and left["kind"] == "update":
                missing = told.keys() - (read or {}).keys()
                if all(told[name] == left["after"][name] for name in missing):
                    excuses += [OLD_VALUES] * bool(missing)
                    told = {name: value for name, value in told.items() if name not in missing}
            _check(told.keys() == (read or {}).keys(), f"columns of {side}")
            for name, text in told.items():
                kind = left["types"][name]
                if kind == "vector" and protocol == "craft":
                    excuses.append("TiCDC's Craft decoder reads a VECTOR as NULL")
                else:
                    _check(_same_text(text, read[name], kind), f"{side} {name}: {read[name]!r}")
    return excuses[0] if excuses else "read alike"


def _same_text(left: str | None, right: str | None, kind: str) -> bool:
    if left == right:
        return True
    is_number = kind.startswith(("float", "double")) and left is not None and right is not None
    return is_number and float(left or 0) == float(right or 0)


def _as_ticdc(protocol: str, theirs: list[Json], ours: list[Json]) -> str:
    _check(len(theirs) == len(ours), f"{len(ours)} events, not {len(theirs)}")
    excuses = [
        excuse
        for left, right in zip(theirs, ours, strict=True)
        for excuse in _event_as_ticdc(protocol, left, right)
    ]
    return excuses[0] if excuses else "read alike"


def _event_as_ticdc(protocol: str, theirs: Json, ours: Json) -> list[str]:
    """Raises Differs if ours is another event; else the excuses that it needed."""
    excuses = []
    kind = {"row": theirs.get("type"), "resolved": "watermark"}.get(theirs["kind"], theirs["kind"])
    _check(kind == ours["kind"], f"{ours['kind']}, not {kind}")
    if protocol == "canal" and int(theirs["commitTs"]) == 0:
        excuses.append(COMMIT_TS)
    else:
        _check(int(theirs["commitTs"]) == ours["commitTs"], f"commitTs {ours['commitTs']}")
    if kind == "watermark":
        return excuses
    names = theirs if kind in ROW_KINDS else theirs["table"] or {}
    for member, name in (("database", "schema"), ("table", "table")):
        _check(
            (names.get(name) or "") == (ours.get(member) or ""), f"{member} {ours.get(member)!r}"
        )
    if kind == "ddl":
        _check(theirs["query"] == ours["ddl"]["query"], f"query {ours['ddl']['query']!r}")
        code = ours["ddl"].get("code", theirs["typeCode"])
        _check(theirs["typeCode"] == code, f"DDL type {code}")
        return excuses
    for side in ("after", "before"):
        excuses += _side_as_ticdc(protocol, side, theirs, ours)
    return excuses


def _side_as_ticdc(protocol: str, side: str, theirs: Json, ours: Json) -> list[str]:
    told = {column["n"]: column for column in theirs[side] or ()}
    read = ours.get(side) or {}
    excuses = []
    missing = told.keys() - read.keys()
    if protocol == "canal" and side == "before" and missing and ours["kind"] == "update":
        after = {column["n"]: column["v"] for column in theirs["after"]}
        if all(told[name]["v"] == after[name] for name in missing):
            excuses.append(OLD_VALUES)
            told = {name: column for name, column in told.items() if name not in missing}
    _check(told.keys() == read.keys(), f"columns of {side}: {sorted(read)}, not {sorted(told)}")
    for name, column in told.items():
        if not _same_value(column["v"], read[name], ours["types"].get(name, "")):
            excuse = _excused_value(protocol, column, read[name], ours)
            _check(excuse, f"{side} {name}: {read[name]!r}, not {column['v']}")
            excuses.append(excuse or "")
    return excuses


def _same_value(theirs: Json | None, ours: str | None, kind: str) -> bool:
    if theirs is None or ours is None:
        return theirs is None and ours is None
    told, text = theirs["k"], theirs["v"]
    if told == "bytes":
        raw = base64.b64decode(text)
        return ours == text or ours.encode() == raw
    if told == "str":
        return ours == text or (("bin" in kind or "blob" in kind) and ours in _as_bytes(text))
    if told in ("f32", "f64"):
        # Canal-JSON's FLOAT is read as 32 bits wide and told as 64.
        return float(ours) == float(text) or (
            kind.startswith("float") and _single(float(ours)) == float(text)
        )
    return int(ours) == int(text) if told in ("i64", "u64") else ours == text


def _single(number: float) -> float:
    try:
        (narrowed,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return number
    return float(narrowed)


def _as_bytes(text: str) -> list[str]:
    """The base64 of bytes that TiCDC may have taken for this text."""
    encodings = ["utf-8"] + ["latin-1"] * all(ord(character) < 256 for character in text)
    return [base64.b64encode(text.encode(encoding)).decode() for encoding in encodings]


def _check(holds: object, otherwise: str) -> None:
    if not holds:
        raise Differs(otherwise)


def rows(
    batches: Sequence[pa.RecordBatch], where: Callable[[pa.Table], Any] | None = None
) -> pa.Table:
    """The rows of batches, without those of shapes."""
    table = pa.Table.from_batches(list(batches))
    is_shape = pc.and_(pc.equal(table["kind"], "schema"), pc.is_valid(table["shape"]))
    table = table.filter(pc.invert(is_shape))
    return (table if where is None else table.filter(where(table))).combine_chunks()


@EACH
def test_one_by_one_they_read_as_in_one_batch(name: str) -> None:
    protocol = FILES[name][0]
    decoding.require(protocol)
    messages = [poison.message for poison in poisons(name)]
    whole, single = (list(decoding.decode(protocol, messages, batch_size=n)) for n in (None, 1))

    assert rows(single).equals(rows(whole))


@EACH
def test_neighbours_of_a_bad_message_are_not_touched(name: str) -> None:
    """Good messages, which no one mutated, with a mutated one after each of them."""
    protocol = FILES[name][0]
    decoding.require(protocol)
    bad = [poison.message._replace(partition=1) for poison in poisons(name)]
    good = [bases(name)[number % len(bases(name))] for number in range(len(bad))]
    between = [message for pair in zip(good, bad, strict=True) for message in pair]
    mixed = decoding.decode(protocol, between)

    alone = rows(list(decoding.decode(protocol, good)))
    assert rows(list(mixed), lambda table: pc.equal(table["partition"], 0)).equals(alone)
    assert "error" not in alone["kind"].to_pylist()


@EACH
def test_a_refused_message_is_one_error_with_its_bytes(name: str) -> None:
    protocol = FILES[name][0]
    decoding.require(protocol)
    messages = [poison.message for poison in poisons(name)]
    errors = defaultdict(list)
    batches = decoding.decode(protocol, messages)
    refused = rows(list(batches), lambda table: pc.equal(table["kind"], "error"))
    for row in refused.select(["offset", "error", "raw_key", "raw_value"]).to_pylist():
        errors[row["offset"]].append(row)

    assert len(errors) > len(messages) // 2
    for offset, found in errors.items():
        assert len(found) == 1
        assert (found[0]["raw_key"], found[0]["raw_value"]) == messages[offset][1:3]
        assert found[0]["error"]["code"]
        assert found[0]["error"]["reason"]
