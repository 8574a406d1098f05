"""Table schemas and their JSON form, which is that of the Simple protocol."""

import json

import pytest

from tidegate.model.errors import SchemaError
from tidegate.model.schema import ABSENT, Column, Index, Partition, Partitioning, TableSchema
from tidegate.model.types import Flag, ValueForm


def column(name, mysql_type, *, nullable=True, default=None, **data_type):
    charset = data_type.pop("charset", "binary")
    described = {"mysqlType": mysql_type, "charset": charset, "collate": charset, **data_type}
    return {"name": name, "dataType": described, "nullable": nullable, "default": default}


def index(name, *columns, unique=True, primary=False, nullable=False):
    return {
        "name": name,
        "unique": unique,
        "primary": primary,
        "nullable": nullable,
        "columns": list(columns),
    }


def schema(columns, indexes):
    return {
        "schema": "shop",
        "table": "orders",
        "tableID": 118,
        "version": 470492978056790016,
        "columns": columns,
        "indexes": indexes,
    }


ORDERS = schema(
    [
        column("id", "bigint", nullable=False, length=20, unsigned=True),
        column("n", "int", length=5, unsigned=True, zerofill=True, default="7"),
        column("price", "decimal", length=10, decimal=4, default="1.005"),
        column("state", "enum", charset="utf8mb4", length=5, elements=["a", "it's", "值"]),
        column("mask", "bit", length=64, unsigned=True, default=18446744073709551615),
        column("at", "datetime", length=23, decimal=3),
        column("note", "varchar", charset="utf8mb4", length=20, nullable=False, default=""),
        column("raw", "varbinary", length=-1),
    ],
    [index("PRIMARY", "id", primary=True), index("by_state", "state", "at", unique=False)],
)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_simples_own_text_is_written_back_unchanged():
    text = compact(ORDERS)
    assert TableSchema.from_json(text).to_json() == text
    assert TableSchema.from_json(text.encode()) == TableSchema.from_json(ORDERS)


def test_a_column_of_simple_is_read_whole():
    read = TableSchema.from_json(ORDERS)
    assert read.column("state") == Column(
        name="state",
        type="enum",
        code=247,
        nullable=True,
        default=None,
        charset="utf8mb4",
        collation="utf8mb4",
        length=5,
        elements=("a", "it's", "值"),
    )
    assert read.column("id").type == "bigint unsigned"
    assert read.column("n").type == "int unsigned zerofill"
    assert read.column("mask").type == "bit"
    assert read.column("absent") is None


@pytest.mark.parametrize(
    ("name", "full_type", "form"),
    [
        ("id", "bigint(20) unsigned", ValueForm.UNSIGNED),
        ("n", "int(5) unsigned zerofill", ValueForm.UNSIGNED),
        ("price", "decimal(10,4)", ValueForm.DECIMAL),
        ("state", "enum('a','it''s','值')", ValueForm.UNSIGNED),
        ("mask", "bit(64)", ValueForm.UNSIGNED),
        ("at", "datetime(3)", ValueForm.TEMPORAL),
        ("note", "varchar(20)", ValueForm.TEXT),
        ("raw", "varbinary(5)", ValueForm.BINARY),
    ],
)
def test_a_column_knows_its_full_type_and_the_form_of_its_values(name, full_type, form):
    read = TableSchema.from_json(ORDERS).column(name)
    assert (read.full_type, read.value_form) == (full_type, form)


@pytest.mark.parametrize("default", ["", "7", 0, 3, 2**64 - 1, 1.5, None])
def test_a_default_survives_as_it_is(default):
    object_ = schema([column("c", "int", default=default)], [])
    read = TableSchema.from_json(object_)
    assert read.column("c").default == default
    assert json.loads(read.to_json()) == object_


def test_an_absent_member_stays_absent_and_null_stays_null():
    bare = {
        "schema": "s",
        "table": "t",
        "columns": [{"name": "c", "dataType": {"mysqlType": "int"}}],
    }
    read = TableSchema.from_json(bare)
    assert read.column("c").default is ABSENT
    assert (read.table_id, read.version, read.indexes) == (None, None, None)
    assert json.loads(read.to_json()) == bare
    assert json.loads(TableSchema.from_json(bare | {"indexes": []}).to_json())["indexes"] == []


def test_what_other_protocols_tell_of_a_column_survives():
    shape = TableSchema(
        database="s",
        table="t",
        columns=(
            Column.of_type("id", "bigint unsigned", flags=Flag(139)),
            Column.of_type("raw", "varbinary", code=253, flags=Flag(65)),
            Column.of_type("at", "timestamp(6)", zone="Asia/Shanghai", default="x"),
            Column.of_type("odd", "hyperint(3)"),
        ),
    )
    assert TableSchema.from_json(shape.to_json()) == shape
    assert shape.handle_key() == shape.primary_key == ("id",)
    assert shape.column("raw").value_form == ValueForm.BINARY
    assert shape.column("odd").value_form == ValueForm.UNKNOWN


A, B, C = (column(name, "int", nullable=False) for name in "abc")
N = column("n", "int")


@pytest.mark.parametrize(
    ("indexes", "primary_key", "handle_key"),
    [
        ([], (), ()),
        ([index("PRIMARY", "b", "a", primary=True), index("u", "c")], ("b", "a"), ("b", "a")),
        ([index("k", "a", unique=False)], (), ()),
        ([index("u", "n", nullable=True)], (), ()),
        ([index("u", "n", nullable=False)], (), ()),
        ([index("u2", "a", "b"), index("u1", "c"), index("u0", "b")], (), ("c",)),
        ([index("u", "a"), index("primary", "a", primary=True)], (), ("a",)),
        ([index("u", "b"), index("primary", "a", primary=True)], ("a",), ("a",)),
    ],
    ids=[
        "no key",
        "the primary key comes first, in the order of the index",
        "an index that is not unique is no key",
        "a unique index with a nullable column is no key",
        "nor where only the column says that it is nullable",
        "the unique index with the fewest columns, the first of them",
        "Simple's `primary` that repeats a unique index is no primary key",
        "Simple's `primary` of a lone integer key is one",
    ],
)
def test_the_handle_key_is_chosen_as_ticdc_chooses_it(indexes, primary_key, handle_key):
    read = TableSchema.from_json(schema([A, B, C, N], indexes))
    assert (read.primary_key, read.handle_key()) == (primary_key, handle_key)


# Column, flags in Open messages of the same table
FLAGS = [
    ("id", Flag.BINARY | Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.UNSIGNED),
    ("n", Flag.BINARY | Flag.NULLABLE | Flag.UNSIGNED),
    ("state", Flag.NULLABLE | Flag.MULTIPLE_KEY),
    ("at", Flag.BINARY | Flag.NULLABLE | Flag.MULTIPLE_KEY),
    ("mask", Flag.BINARY | Flag.NULLABLE | Flag.UNSIGNED),
    ("note", Flag(0)),
]


@pytest.mark.parametrize(("name", "flags"), FLAGS)
def test_flags_follow_from_type_and_indexes_as_ticdc_sets_them(name, flags):
    assert TableSchema.from_json(ORDERS).flags(name) == flags


def test_all_columns_of_a_composite_unique_key_are_unique_and_multiple():
    read = TableSchema.from_json(schema([A, B], [index("u", "a", "b")]))
    expected = Flag.BINARY | Flag.HANDLE_KEY | Flag.UNIQUE_KEY | Flag.MULTIPLE_KEY
    assert (read.flags("a"), read.flags("b")) == (expected, expected) == (51, 51)


def test_the_columns_of_a_view_have_no_binary_flag():
    assert TableSchema.from_json(schema([column("id", "int", charset="")], [])).flags("id") == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must hold an object"),
        ('{"columns":"ab"}', "'columns' must be a list"),
        ('{"columns":[1]}', "columns must hold an object"),
        ('{"columns":[{}]}', "'name' is missing"),
        ('{"columns":[{"name":"a"}]}', "'dataType' is missing"),
        ('{"columns":[{"name":"a","dataType":{}}]}', "'mysqlType' is missing"),
        ('{"columns":[{"name":"a","dataType":{"mysqlType":3}}]}', "'mysqlType' must be text"),
        (
            '{"columns":[{"name":"a","dataType":{"mysqlType":"int"},"default":[]}]}',
            "the default of column 'a'",
        ),
        ('{"tableID":true}', "'tableID' must be a whole number"),
        ('{"indexes":[{"name":"i","columns":[1]}]}', "'columns' must hold texts only"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_by_the_member_at_fault(text, message):
    with pytest.raises(SchemaError, match=message):
        TableSchema.from_json(text)


def test_an_index_identifies_rows_if_it_is_primary_or_unique_and_never_null():
    assert Index(name="p", primary=True).identifies
    assert Index(name="u", unique=True).identifies
    assert not Index(name="u", unique=True, nullable=True).identifies
    assert not Index(name="k").identifies


GENERATED = TableSchema(
    database="shop",
    table="orders",
    columns=(
        Column.of_type("id", "int", nullable=False),
        Column.of_type("v", "int", nullable=False, generated="virtual"),
        Column.of_type("s", "int", nullable=False, generated="stored"),
    ),
    indexes=(
        Index(name="uv", unique=True, columns=("v",)),
        Index(name="us", unique=True, columns=("s",)),
    ),
    charset="utf8mb4",
    collation="utf8mb4_bin",
    partitioning=Partitioning(
        method="list",
        by=("`s`",),
        partitions=(Partition(name="p", values=(("1",), ("NULL",))), Partition(name="rest")),
    ),
)


def test_what_a_statement_told_survives_the_json_form():
    assert TableSchema.from_json(GENERATED.to_json()) == GENERATED


def test_a_virtual_column_identifies_no_row():
    assert GENERATED.handle_key() == ("s",)
    assert GENERATED.flags("v") == Flag.BINARY | Flag.GENERATED | Flag.UNIQUE_KEY


@pytest.mark.parametrize(
    "partitioning",
    [
        [],
        {"by": []},
        {"method": 5},
        {"method": "range", "partitions": [5]},
        {"method": "hash", "by": 5},
    ],
)
def test_partitions_of_another_form_are_refused(partitioning):
    with pytest.raises(SchemaError):
        TableSchema.from_json({"partitioning": partitioning})


def test_an_index_that_simple_made_up_is_none_of_the_tables_own():
    unique = Index(name="u", unique=True, columns=("a",))
    made_up = Index(name="primary", unique=True, primary=True, columns=("a",))
    table = TableSchema(database="d", table="t", indexes=(unique, made_up))
    assert table.own_indexes == (unique,)
    assert TableSchema(database="d", table="t").own_indexes is None
