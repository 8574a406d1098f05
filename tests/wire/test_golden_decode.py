"""Every golden file decodes to the truth, in so far as its protocol and settings carry it."""

import struct
from collections import defaultdict
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support import corpus, decoding, expectation, truth
from tests.support.corpus import Variant
from tests.support.decoding import ROW_KINDS

Json = dict[str, Any]

VARIANTS = corpus.variants()
FEEDS = [variant for variant in VARIANTS if not variant.stream]
STREAMS = [variant for variant in VARIANTS if variant.stream]
CLAIM_CHECKED = [variant for variant in VARIANTS if "cc" in variant.options]
PARTITIONS = 3
# Of the largest files a part is enough to see that the size of batches does not matter.
MOST_SINGLE_MESSAGES = 1500


def by_name(variants: list[Variant]) -> Any:
    return pytest.mark.parametrize("variant", variants, ids=lambda variant: variant.name)


def read(variant: Variant) -> list[Json]:
    decoding.require(variant.protocol)
    load = corpus.claim_check_loader(variant.name) if "cc" in variant.options else None
    messages = corpus.messages(variant.name)
    return decoding.documents(decoding.decode_variant(variant, messages, claim_check=load))


def split(found: list[Json]) -> tuple[list[Json], list[Json]]:
    """The events, and apart from them the table schemas of BOOTSTRAP messages."""
    events = [decoding.content(event) for event in found if not decoding.is_bootstrap(event)]
    return events, [event for event in found if decoding.is_bootstrap(event)]


@by_name(FEEDS)
def test_a_feed_reads_as_the_truth(variant: Variant) -> None:
    rules = expectation.rules(variant)
    events, _ = split(read(variant))
    if rules.rows_by_table:
        events = expectation.in_table_order(events)
    expected = expectation.events(variant)

    decoding.assert_same(expected, events, rules.order)


@by_name([variant for variant in VARIANTS if variant.protocol == "simple"])
def test_bootstraps_bring_the_table_schemas(variant: Variant) -> None:
    _, bootstraps = split(read(variant))
    expected = []
    for event in bootstraps:
        event.pop("commitTs", None)  # 0 in JSON, none in Avro: it means nothing
        members = ("database", "table", "tableId", "schemaVersion")
        expected.append(expectation.bootstrap(variant, *(event[name] for name in members)))
    notes = [message.note for message in corpus.messages(variant.name)]

    decoding.assert_same(expected, [decoding.content(event) for event in bootstraps])
    assert len(bootstraps) == sum(note.startswith("bootstrap") for note in notes)


@by_name(VARIANTS)
def test_events_stand_where_they_were_read(variant: Variant) -> None:
    messages = corpus.messages(variant.name)
    places = [tuple(event[name] for name in decoding.POSITION) for event in read(variant)]
    first = {(partition, offset) for partition, offset, event in places if event == 0}
    sent = zip((message.partition for message in messages), decoding.offsets(messages), strict=True)

    assert first == set(sent)
    before = dict.fromkeys(range(PARTITIONS), (-1, -1))
    for partition, offset, event in places:
        last_offset, last_event = before[partition]
        assert (offset, event) in ((last_offset, last_event + 1), (last_offset + 1, 0))
        before[partition] = offset, event


@by_name(STREAMS)
def test_a_stream_brings_every_row_once_and_in_order(variant: Variant) -> None:
    """Rows sent again aside, the partitions together have each row once, in the order of commits.

    The order is that of each table or, where rows are batched, of each key.
    """
    by_key = expectation.rules(variant).rows_by_table
    expected: dict[str, list[Json]] = defaultdict(list)
    for event in expectation.events(variant):
        if event["kind"] in ROW_KINDS:
            expected[_line(event, by_key)].append(event)
    found: dict[str, list[list[Json]]] = defaultdict(lambda: [[] for _ in range(PARTITIONS)])
    for event in read(variant):
        if event["kind"] in ROW_KINDS:
            found[_line(event, by_key)][event["partition"]].append(decoding.content(event))

    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        places = [_first_places(rows, part) for part in found[name]]
        assert all(part == sorted(part) for part in places), f"{name} is out of order"
        assert sorted(chain(*places)) == list(range(len(rows))), f"{name} lacks or repeats rows"


def _line(row: Json, by_key: bool) -> str:
    """What rows must share to be in order: their table, perhaps also their key."""
    side = row["before" if row["kind"] == "delete" else "after"]
    key = [(name, side[name]) for name in sorted(row["keys"])] if by_key else None
    return repr((row["database"], row["table"], key))


def _first_places(expected: list[Json], rows: list[Json]) -> list[int]:
    """Where rows stand in the truth, each row once; every row must be there."""
    where: dict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(expected):
        where[row["commitTs"]].append(place)
    places: dict[int, None] = {}
    for row in rows:
        alike = [place for place in where[row["commitTs"]] if expected[place] == row]
        if not alike:
            near = [expected[place] for place in where[row["commitTs"]]] or expected
            decoding.assert_same(near[:1], [row])
        places[next((place for place in alike if place not in places), alike[0])] = None
    return list(places)


@by_name(STREAMS)
def test_a_stream_broadcasts_ddl_and_watermarks(variant: Variant) -> None:
    rules = expectation.rules(variant)
    expected = [event for event in expectation.events(variant) if event["kind"] not in ROW_KINDS]
    events = [event for event in read(variant) if event["kind"] in ("ddl", "watermark")]

    for partition in range(PARTITIONS):
        here = [decoding.content(event) for event in events if event["partition"] == partition]
        due = [
            event
            for event in expected
            if event["kind"] == "watermark" or rules.ddl_broadcast or partition == 0
        ]
        decoding.assert_same(due, here)


@pytest.mark.parametrize("batch_size", [1, 7])
@by_name(VARIANTS)
def test_the_size_of_batches_does_not_matter(variant: Variant, batch_size: int) -> None:
    decoding.require(variant.protocol)
    messages = corpus.messages(variant.name)[: MOST_SINGLE_MESSAGES * batch_size]
    load = corpus.claim_check_loader(variant.name) if "cc" in variant.options else None
    whole, parts = (
        _without_shapes(
            list(decoding.decode_variant(variant, messages, batch_size=size, claim_check=load))
        )
        for size in (None, batch_size)
    )

    assert parts.equals(whole)


def _without_shapes(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    is_shape = pc.and_(pc.equal(table["kind"], "schema"), pc.is_valid(table["shape"]))
    return table.filter(pc.invert(is_shape)).combine_chunks()


@by_name(FEEDS)
def test_rows_alike_have_one_shape(variant: Variant) -> None:
    """Neither values nor the order of a map's members nor the batch make another shape."""
    shapes: dict[str, set[int]] = defaultdict(set)
    for event in read(variant):
        if event["kind"] in ROW_KINDS:
            side = event["before" if event["kind"] == "delete" else "after"]
            types = event.get("types", {})
            columns = sorted((name, types.get(name)) for name in side)
            # Simple's rows tell nothing of a column but, of a TIMESTAMP that is not NULL, its zone.
            zones = [
                (name, side[name] is None)
                for name, kind in columns
                if variant.protocol == "simple" and kind == "timestamp"
            ]
            told = columns if variant.protocol != "simple" else sorted(side)
            name = (
                event["database"],
                event["table"],
                event.get("keys"),
                told,
                zones,
                event.get("flags"),
            )
            shapes[repr(name)].add(event["shape"])

    assert {name: found for name, found in shapes.items() if len(found) > 1} == {}


@by_name(CLAIM_CHECKED)
def test_claim_checks_left_alone_show_the_handle_key(variant: Variant) -> None:
    decoding.require(variant.protocol)
    messages = corpus.messages(variant.name)
    found = decoding.documents(decoding.decode_variant(variant, messages))
    events = [event for event in found if not decoding.is_bootstrap(event)]
    expected = expectation.events(variant, claims=False)
    claimed = [event.pop("flags", None) is not None for event in expected]

    assert [event.pop("claimCheck", None) is not None for event in events] == claimed
    assert ["claim-check" in event.pop("flags", ()) for event in events] == claimed
    decoding.assert_same(expected, [decoding.content(event) for event in events])


def test_the_truth_of_floats_is_their_shortest_text() -> None:
    """Go's digits of the truth files are those of the IEEE bits beside them, without an exponent."""
    seen = 0
    for raw in corpus.events("types"):
        for column in [*(raw.get("after") or ()), *(raw.get("before") or ())]:
            value = column["v"]
            if value is not None and "bits" in value:
                form = "f" if value["k"] == "f32" else "d"
                text = truth.positional(value["v"])
                assert struct.pack(f">{form}", float(text)).hex() == value["bits"]
                assert "e" not in text
                seen += 1
    assert seen > 80
