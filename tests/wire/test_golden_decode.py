"""Every golden file decodes to the truth, in so far as its protocol and settings carry it."""

import struct
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support import corpus, decoding, expectation, truth
from tests.support.corpus import Variant
from tests.support.decoding import ROW_KINDS

Json = dict[str, Any]

PARTITIONS = 3
# Of the largest files a part is enough to see that the size of batches does not matter.
MOST_BATCHES = 500


def files(where: Callable[[Variant], object]) -> Any:
    chosen = [variant for variant in corpus.variants() if where(variant)]
    return pytest.mark.parametrize("variant", chosen, ids=lambda variant: variant.name)


def loader(variant: Variant) -> Callable[[str], bytes] | None:
    return corpus.claim_check_loader(variant.name) if "cc" in variant.options else None


def read(variant: Variant) -> list[Json]:
    """Everything a file holds, in the form of `tidegate inspect --output json`."""
    decoding.require(variant.protocol)
    messages = corpus.messages(variant.name)
    batches = decoding.decode_variant(variant, messages, claim_check=loader(variant))
    return decoding.documents(batches)


def contents(documents: list[Json], *kinds: str) -> list[Json]:
    """What events of these kinds say, without where and how they were read."""
    return [decoding.content(event) for event in documents if event["kind"] in kinds]


@files(lambda variant: not variant.stream)
def test_a_feed_reads_as_the_truth(variant: Variant) -> None:
    documents = read(variant)
    rules = expectation.rules(variant)
    events = contents(documents, "ddl", "watermark", "error", *ROW_KINDS)
    if rules.rows_by_table:
        events = expectation.in_table_order(events)

    decoding.assert_same(expectation.events(variant), events, rules.order)
    events_stand_where_they_were_read(variant, documents)
    bootstraps_bring_the_table_schemas(variant, documents)
    rows_alike_have_one_shape(variant, documents)
    spoiled_values_that_are_none_are_flagged(variant, documents)


@files(lambda variant: variant.stream)
def test_a_stream_reads_as_the_truth(variant: Variant) -> None:
    documents = read(variant)

    assert contents(documents, "error") == []
    every_row_comes_once_and_in_order(variant, documents)
    ddl_and_watermarks_are_broadcast(variant, documents)
    events_stand_where_they_were_read(variant, documents)
    bootstraps_bring_the_table_schemas(variant, documents)


def events_stand_where_they_were_read(variant: Variant, documents: list[Json]) -> None:
    messages = corpus.messages(variant.name)
    places = [tuple(event[name] for name in decoding.POSITION) for event in documents]
    first = {(partition, offset) for partition, offset, event in places if event == 0}
    sent = zip((message.partition for message in messages), decoding.offsets(messages), strict=True)

    assert first == set(sent)
    before = dict.fromkeys(range(PARTITIONS), (-1, -1))
    for partition, offset, event in places:
        last_offset, last_event = before[partition]
        assert (offset, event) in ((last_offset, last_event + 1), (last_offset + 1, 0))
        before[partition] = offset, event


def bootstraps_bring_the_table_schemas(variant: Variant, documents: list[Json]) -> None:
    """When a BOOTSTRAP is sent the truth does not tell, but what it must say of its table."""
    bootstraps = contents(documents, "schema")
    expected = []
    for event in bootstraps:
        event.pop("commitTs", None)  # 0 in JSON, none in Avro: it means nothing
        members = ("database", "table", "tableId", "schemaVersion")
        expected.append(expectation.bootstrap(variant, *(event[name] for name in members)))
    notes = [message.note for message in corpus.messages(variant.name)]

    decoding.assert_same(expected, bootstraps)
    assert len(bootstraps) == sum(note.startswith("bootstrap") for note in notes)


def rows_alike_have_one_shape(variant: Variant, documents: list[Json]) -> None:
    """Neither values nor the order of a map's members nor the batch make another shape."""
    rows = [event for event in documents if event["kind"] in ROW_KINDS]
    if expectation.rules(variant).rows_by_table:
        rows = expectation.in_table_order(rows)
    found: dict[str, set[int]] = defaultdict(set)
    for told, event in zip(expectation.shapes(variant), rows, strict=True):
        found[told].add(event["shape"])

    assert {told: shapes for told, shapes in found.items() if len(shapes) > 1} == {}


def spoiled_values_that_are_none_are_flagged(variant: Variant, documents: list[Json]) -> None:
    """Bytes that are no number at all may be read as NULL, but then the row says so."""
    if variant.protocol != "craft":
        return
    if expectation.rules(variant).rows_by_table:
        documents = expectation.in_table_order(documents)
    for expected, row in zip(expectation.events(variant), documents, strict=True):
        lost = [
            name
            for side in ("after", "before")
            for name, value in expected.get(side, {}).items()
            if value is not None and row[side][name] is None
        ]
        assert not lost or "corrupted" in row["flags"]


def every_row_comes_once_and_in_order(variant: Variant, documents: list[Json]) -> None:
    """Rows sent again aside, the partitions together have each row once, in the order of commits.

    The order is that of each table or, where rows are batched, of each key.
    """
    by_key = expectation.rules(variant).rows_by_table
    expected: dict[str, list[Json]] = defaultdict(list)
    for event in expectation.events(variant):
        if event["kind"] in ROW_KINDS:
            expected[_line(event, by_key)].append(event)
    found: dict[str, list[list[Json]]] = defaultdict(lambda: [[] for _ in range(PARTITIONS)])
    for event in documents:
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


def ddl_and_watermarks_are_broadcast(variant: Variant, documents: list[Json]) -> None:
    rules = expectation.rules(variant)
    kinds = ("ddl", "watermark")
    expected = [event for event in expectation.events(variant) if event["kind"] in kinds]

    for partition in range(PARTITIONS):
        here = [event for event in documents if event["partition"] == partition]
        due = [
            event
            for event in expected
            if event["kind"] == "watermark" or rules.ddl_broadcast or partition == 0
        ]
        decoding.assert_same(due, contents(here, *kinds))


@files(lambda variant: True)
def test_the_size_of_batches_does_not_matter(variant: Variant) -> None:
    decoding.require(variant.protocol)
    load = loader(variant)
    for size in (1, 7):
        messages = corpus.messages(variant.name)[: MOST_BATCHES * size]
        whole, parts = (
            _without_shapes(
                list(decoding.decode_variant(variant, messages, batch_size=step, claim_check=load))
            )
            for step in (None, size)
        )
        assert parts.equals(whole), f"batches of {size}"


def _without_shapes(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    is_shape = pc.and_(pc.equal(table["kind"], "schema"), pc.is_valid(table["shape"]))
    return table.filter(pc.invert(is_shape)).combine_chunks()


@files(lambda variant: "cc" in variant.options)
def test_claim_checks_left_alone_show_the_handle_key(variant: Variant) -> None:
    decoding.require(variant.protocol)
    messages = corpus.messages(variant.name)
    documents = decoding.documents(decoding.decode_variant(variant, messages))
    events = [event for event in documents if event["kind"] != "schema"]
    expected = [dict(event) for event in expectation.events(variant, claims=False)]
    claimed = [event.pop("flags", None) is not None for event in expected]

    assert [event.pop("claimCheck", None) is not None for event in events] == claimed
    assert ["claim-check" in event.pop("flags", ()) for event in events] == claimed
    decoding.assert_same(expected, [decoding.content(event) for event in events])


@pytest.mark.parametrize(
    "case",
    # The cases of release 5.3 are invented: no server writes dates with slashes.
    [case for case in corpus.craft_sizes(mended=True) if case["name"].startswith("HEAD")],
    ids=lambda case: case["name"],
)
@pytest.mark.parametrize("protocol, member", [("craft", "craft"), ("open", "json")])
def test_the_events_of_crafts_size_table(protocol: str, member: str, case: Json) -> None:
    """The only Craft messages whose FLOAT values are as they should be."""
    decoding.require(protocol)
    variant = expectation.mended(protocol)
    rows = [truth.row_event(raw) for raw in case["events"]]
    messages = corpus.case_messages(case[member])
    documents = decoding.documents(decoding.decode_variant(variant, messages))

    expected = [expectation.expected(variant, row) for row in rows]
    decoding.assert_same(expected, [decoding.content(event) for event in documents])


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
