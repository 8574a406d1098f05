"""The truth as a change batch: what the encoders are given to write the golden files from."""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tests.support import corpus, expectation, truth
from tests.support.corpus import Variant
from tests.support.table_schema import simple_schema
from tests.support.truth import ROWS, Column, Event, TableSchema

Json = dict[str, Any]
ZONE = "UTC"  # of the server that wrote the golden files
HAS_CHECKSUM, CORRUPTED = 4, 32  # among the flags of a change batch
OPEN_ROW = 1  # the `t` of a row in a key of the Open protocol


def sent(variant: Variant) -> list[Event]:
    """The events of a feed in the order in which TiCDC wrote them to this file.

    Batching encoders collect rows by table; in which order the tables come is seen in the keys of an
    Open file of the same scenario.
    """
    rules = expectation.rules(variant)
    events = truth.events(variant.truth)
    carried = [event for event in events if rules.watermarks or event.kind != "watermark"]
    if not rules.rows_by_table:
        return carried
    rows: dict[tuple[str | None, str | None], deque[Event]] = defaultdict(deque)
    others: deque[Event] = deque()
    for event in carried:
        line = rows[event.database, event.table] if event.kind in ROWS else others
        line.append(event)
    ordered = []
    for key in _open_keys(variant):
        line = rows[key["scm"], key["tbl"]] if key["t"] == OPEN_ROW else others
        ordered.append(line.popleft())
    assert len(ordered) == len(carried)
    return ordered


def flushes(variant: Variant, batch_size: int) -> list[int]:
    """Before which events a batching encoder was told to write what it had.

    TiCDC encodes what it finds in its queue; how much that is, no rule tells. So a message that is
    not full though more rows of its table follow marks such a place.
    """
    events = sent(variant)
    mixed = not expectation.rules(variant).rows_by_table
    found = []
    last_start = end = 0
    for message in corpus.messages(variant.name):
        start, end = end, end + event_count(message)
        if (
            start
            and start - last_start < batch_size
            and _joinable(events[start - 1], events[start], mixed)
        ):
            found.append(start)
        last_start = start
    return found


def event_count(message: corpus.Message) -> int:
    """How many events of the truth a message of a single partition has."""
    if message.note.startswith("bootstrap"):
        return 0
    return int(message.note.partition("n=")[2]) if message.note.startswith("row") else 1


def _joinable(last: Event, event: Event, mixed: bool) -> bool:
    if last.kind not in ROWS or event.kind not in ROWS:
        return False
    return mixed or (last.database, last.table) == (event.database, event.table)


def _open_keys(variant: Variant) -> Iterator[Json]:
    plain = next(
        other
        for other in corpus.variants()
        if (other.truth, other.protocol, other.stream) == (variant.truth, "open", False)
        and other.options & {"b1", "b16"}
    )
    for message in corpus.messages(plain.name):
        for key in expectation.split_open(message)[0]:
            yield json.loads(key)


def _bootstraps(variant: Variant) -> dict[int, list[TableSchema]]:
    """The table schemas that a Simple feed sends on their own, by the event that they precede.

    When TiCDC sends one depends on its clock and counters, so the golden file itself is asked when.
    """
    name = next(
        other.name
        for other in corpus.variants()
        if (other.truth, other.encoding) == (variant.truth, "json")
        and not (other.stream or other.compression or other.options - {"ck"})
    )
    found: dict[int, list[TableSchema]] = defaultdict(list)
    place = 0
    for message in corpus.messages(name):
        if not message.note.startswith("bootstrap"):
            place += 1
            continue
        told = json.loads(message.value or b"")["tableSchema"]
        known = truth.schemas(variant.truth).find(told["schema"], told["table"], told["version"])
        found[place].append(
            TableSchema(known.database, known.table, told["tableID"], told["version"], known.raw)
        )
    return found


def _schemas_without_ddl(variant: Variant) -> list[TableSchema]:
    """The schemas of rows whose version no DDL has: see `truth.Schemas.find`."""
    told = truth.schemas(variant.truth).by_version
    found: dict[tuple[str, str, int], TableSchema] = {}
    for event in truth.events(variant.truth):
        if event.schema is None or event.schema_version is None:
            continue
        name = event.schema.database, event.schema.table, event.schema_version
        if name not in told:
            table_id = event.logical_table_id or event.schema.table_id
            found[name] = replace(event.schema, version=event.schema_version, table_id=table_id)
    return list(found.values())


class _Shapes:
    """Gives each distinct list of columns of a table a number, and the schema rows for them.

    `names_only`: as Simple's rows have them, whose table schemas come apart. `full_types`: with
    parameters, as a content-compatible Canal-JSON has them.
    """

    def __init__(self, *, names_only: bool, full_types: bool) -> None:
        self.names_only = names_only
        self.full_types = full_types
        self.numbers: dict[str, int] = {}
        self.rows: list[Json] = []

    def number(self, event: Event) -> int:
        columns = [self._column(column, event.schema) for column in event.columns]
        document = json.dumps({"columns": columns}, ensure_ascii=False)
        name = f"{event.database}.{event.table} {document}"
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers) + 1
            self.rows.append(
                {
                    "kind": "schema",
                    "event": -1,
                    "flags": 0,
                    "database": event.database,
                    "table": event.table,
                    "shape": self.numbers[name],
                    "schema": document,
                }
            )
        return self.numbers[name]

    def _column(self, column: Column, schema: TableSchema | None) -> Json:
        if self.names_only:
            zone = {"zone": ZONE} if column.code == expectation.TIMESTAMP else {}
            return {"name": column.name} | zone
        zerofill = schema is not None and schema.is_zerofill(column.name)
        return {
            "name": column.name,
            "type": schema.full_type(column.name)
            if self.full_types and schema is not None
            else column.type_name(zerofill=zerofill),
            "code": column.code,
            "flags": column.flags,
            "key": column.is_handle,
        }


def _texts(side: Iterable[Column] | None) -> list[str | None] | None:
    return None if side is None else [column.text for column in side]


def _row(variant: Variant, event: Event, shapes: _Shapes) -> Json:
    rules = expectation.rules(variant)
    has_id = rules.table_id == "physical" or (rules.table_id and event.is_partition)
    return {
        "database": event.database,
        "table": event.table,
        "table_id": event.table_id if has_id else None,
        "shape": shapes.number(event),
        "schema_version": event.schema_version,
        "after": _texts(event.after),
        "before": _texts(event.before),
        **(_checksum(event.checksum) if rules.checksum and event.checksum else {}),
    }


def _checksum(checksum: Json) -> Json:
    return {
        "checksum": checksum,
        "flags": HAS_CHECKSUM | (CORRUPTED if checksum["corrupted"] else 0),
    }


def _ddl(variant: Variant, event: Event) -> Json:
    told = expectation.expected(variant, event)
    assert told is not None
    schemas = ("tableSchema", event.schema), ("preTableSchema", event.schema_before)
    return {
        "database": told.get("database"),
        "table": told.get("table"),
        "table_id": told.get("tableId"),
        "schema_version": told.get("schemaVersion"),
        "ddl": {"type": told["ddl"].get("type"), "code": event.ddl_code, "query": event.query},
        "schema": _schemas(variant, schemas),
    }


def _schemas(variant: Variant, schemas: Iterable[tuple[str, TableSchema | None]]) -> str | None:
    found = {
        name: simple_schema(schema, variant.generation)
        for name, schema in schemas
        if schema is not None
    }
    return json.dumps(found, ensure_ascii=False) if found else None


def _schema_row(variant: Variant, schema: TableSchema) -> Json:
    return {
        "kind": "schema",
        "event": 0,
        "flags": 0,
        "database": schema.database,
        "table": schema.table,
        "table_id": schema.table_id,
        "schema_version": schema.version,
        "schema": _schemas(variant, [("tableSchema", schema)]),
    }


def change_batch(variant: Variant) -> pa.RecordBatch:
    """Everything that a golden file of one partition says, in its order, whole rows throughout."""
    if variant.protocol == "simple":
        return batch_of(variant, sent(variant), _bootstraps(variant))
    return batch_of(variant, sent(variant), {0: _schemas_without_ddl(variant)})


def source_batch(variant: Variant) -> pa.RecordBatch:
    """What the sender of a golden stream was given: all events in the order of commit."""
    events = truth.events(variant.truth)
    return batch_of(variant, events, {0: _schemas_without_ddl(variant)})


def batch_of(
    variant: Variant,
    events: Iterable[Event],
    bootstraps: Mapping[int, Iterable[TableSchema]] = MappingProxyType({}),
) -> pa.RecordBatch:
    """Events as a change batch; `bootstraps`: table schemas to stand before the n-th event."""
    from tidegate.wire import CHANGE_SCHEMA

    full_types = expectation.rules(variant).types == "full"
    shapes = _Shapes(names_only=variant.protocol == "simple", full_types=full_types)
    rows = []
    for place, event in enumerate(events):
        rows += [_schema_row(variant, schema) for schema in bootstraps.get(place, ())]
        row: Json = {"kind": event.kind, "event": 0, "flags": 0, "commit_ts": event.commit_ts}
        if event.kind == "ddl":
            row |= _ddl(variant, event)
        elif event.kind in ROWS:
            row |= _row(variant, event, shapes)
        rows.append(row)
    return pa.RecordBatch.from_pylist(shapes.rows + rows, schema=CHANGE_SCHEMA)
