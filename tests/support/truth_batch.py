"""The truth as a change batch: what the encoders are given to write the golden files from."""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tests.support import corpus, expectation, truth
from tests.support.corpus import Variant
from tests.support.table_schema import simple_schema
from tests.support.truth import ROWS, Column, Event, TableSchema

Json = dict[str, Any]
OPEN_ROW, OPEN_DDL, OPEN_WATERMARK = 1, 2, 3


def sent(variant: Variant) -> list[Event]:
    """The events of a feed in the order in which TiCDC wrote them to this file.

    Batching encoders collect rows by table; in which order the tables come is seen in the keys of an
    Open file of the same scenario.
    """
    events = truth.events(variant.truth)
    carried = [event for event in events if expectation.expected(variant, event) is not None]
    if not expectation.rules(variant).rows_by_table:
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
    words = [word for word in variant.name.split(".") if word not in ("avro", "json")]
    name = next(
        other.name
        for other in corpus.variants()
        if (other.truth, other.encoding) == (variant.truth, "json")
        and not (other.stream or other.compression or other.options - {"ck"})
    )
    assert words
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


class _Shapes:
    """Gives each distinct list of columns of a table a number, and the schema rows for them."""

    def __init__(self) -> None:
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
        zerofill = schema is not None and schema.is_zerofill(column.name)
        return {
            "name": column.name,
            "type": column.type_name(zerofill=zerofill),
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
        "checksum": event.checksum if rules.checksum else None,
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
    from tidegate.wire import CHANGE_SCHEMA

    shapes = _Shapes()
    bootstraps = _bootstraps(variant) if variant.protocol == "simple" else {}
    events = []
    for place, event in enumerate(sent(variant)):
        events += [_schema_row(variant, schema) for schema in bootstraps.get(place, ())]
        row: Json = {"kind": event.kind, "event": 0, "flags": 0, "commit_ts": event.commit_ts}
        if event.kind == "ddl":
            row |= _ddl(variant, event)
        elif event.kind in ROWS:
            row |= _row(variant, event, shapes)
        events.append(row)
    rows = shapes.rows + events
    return pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)
