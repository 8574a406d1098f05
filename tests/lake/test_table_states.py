"""What is recorded of tables, step by step, gives the same tables after a restart."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from tidegate.lake.apply.plan.tables import Table
from tidegate.lake.table_states import WHOLE, KnownTables, TableRecords
from tidegate.model import Column, TableSchema
from tidegate.sql.tables import Name


def schema(table: str, *columns: str, version: int | None = None) -> TableSchema:
    made = tuple(Column.of_type(name, "int") for name in columns)
    return TableSchema(database="d", table=table, columns=made, version=version)


def add(known: KnownTables, table: str, *columns: str) -> None:
    known.tables["d", table] = Table(Name("d", table), schema(table, *columns), table)
    known.book.put(schema(table, *columns))
    known.cache.add_schema(schema(table, *columns, version=len(columns)))


def test_only_what_a_step_has_changed_is_recorded():
    known, records = KnownTables(), TableRecords()
    for number in range(1000):
        add(known, f"t{number}", "a", "b")
    first = records.changes(known)
    assert first is not None
    assert first.startswith(WHOLE)
    assert records.changes(known) is None
    known.tables["d", "t7"].stop("so", 5)
    add(known, "t8", "a", "b", "c")
    del known.tables["d", "t9"]
    second = records.changes(known)
    assert second is not None
    assert len(second) < len(first) / 100
    changed = {tuple(key) for key, _ in json.loads(second)["parts"]}
    assert {key[:3] for key in changed} == {
        *((kind, "d", "t8") for kind in ("table", "book", "cache")),
        ("table", "d", "t7"),
    }
    again = KnownTables.from_records([first, second])
    assert again.parts() == known.parts()


def test_after_many_changes_all_tables_are_recorded_and_a_restart_continues():
    rng, known, records = random.Random(1), KnownTables(), TableRecords()
    texts: list[str] = []
    for number in range(300):
        name = f"t{rng.randrange(20)}"
        if rng.random() < 0.2:
            known.tables.pop(("d", name), None)
            known.book.remove(Name("d", name))
        else:
            add(known, name, *(f"c{each}" for each in range(rng.randrange(1, 5))))
        text = records.changes(known)
        if text is not None:
            texts = [text] if text.startswith(WHOLE) else [*texts, text]
        if number % 50 == 49:
            known = KnownTables.from_records(texts)
            records = TableRecords()
            records.start(known, texts)
        assert KnownTables.from_records(texts).parts() == known.parts()
    assert sum(map(len, texts)) < 3 * len(texts[0])


def test_a_table_that_has_other_columns_upstream_keeps_both():
    known, records = KnownTables(), TableRecords()
    add(known, "t", "a")
    table = known.tables["d", "t"]
    table.upstream, table.gone = replace(table.schema, version=3), True
    table.diverge("because")
    text = records.changes(known)
    assert text is not None
    assert KnownTables.from_records([text]).tables == known.tables
