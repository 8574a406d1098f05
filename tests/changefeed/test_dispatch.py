"""Dispatch: the topic and the partition of a change are those that TiCDC chooses."""

import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest

from tests.support import corpus, decoding, expectation, truth
from tests.support.corpus import Variant
from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule
from tidegate.changefeed.send.dispatch import Dispatcher
from tidegate.model import ConfigError, EncodeError, Flag, Index, SchemaNotSeen, TableSchema
from tidegate.wire import CHANGE_SCHEMA, Shape, ShapeBook, ShapeColumn

INT, BLOB, VARCHAR, BIT = 3, 252, 15, 16
KEY = Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.BINARY

STREAMS = [variant for variant in corpus.variants() if variant.stream]
PARTITIONS = 3
WHOLE_HASH = 1 << 32  # with so many partitions, the partition is the hash itself


def dispatcher(*rules: DispatchRule, partitions: int = 16, **settings: Any) -> Dispatcher:
    generation = settings.pop("generation", "classic")
    config = ChangefeedConfig(dispatchers=rules, **settings)
    return Dispatcher(config, partitions, generation=generation)


def rule(partition: str, matcher: str = "*.*", **more: Any) -> DispatchRule:
    text = "".join(f", {name} = {value!r}" for name, value in more.items())
    toml = f"[sink]\ndispatchers = [{{matcher = ['{matcher}'], partition = '{partition}'{text}}}]"
    return ChangefeedConfig.from_toml(toml).dispatchers[0]


def shape(*columns: ShapeColumn, indexes: tuple[Index, ...] | None = None) -> Shape:
    schema = TableSchema(database="test", table="t1", indexes=indexes) if indexes else None
    return Shape(7, "test", "t1", columns, schema)


A = ShapeColumn("a", code=INT, flags=KEY)
B = ShapeColumn("b", code=INT, flags=0)


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table, expected",
    [("t1", 15), ("t2", 5), ("t3", 3)],
)
@pytest.mark.parametrize("name", ["table", "default"])
def test_the_table_alone_decides(name: str, table: str, expected: int) -> None:
    """The numbers are those of TiCDC's own tests."""
    assert dispatcher(rule(name)).partition("test", table, []) == expected
    assert dispatcher().partition("test", table, []) == expected


@pytest.mark.parametrize("value, expected", [("11", 2), ("22", 11)])
@pytest.mark.parametrize("name", ["index-value", "rowid", "Index-Value"])
def test_the_value_of_the_handle_key_decides(name: str, value: str, expected: int) -> None:
    """The numbers are those of TiCDC's own tests."""
    assert dispatcher(rule(name)).partition("test", "t1", [value, "9"], shape(A, B)) == expected


def test_the_order_of_columns_does_not_matter() -> None:
    b_key = ShapeColumn("b", code=INT, key=True)
    by_value = dispatcher(rule("index-value"), partitions=1009)
    one = by_value.partition("test", "t1", ["1", "2"], shape(A, b_key))

    assert by_value.partition("test", "t1", ["2", "1"], shape(b_key, A)) == one
    assert by_value.partition("test", "t1", ["1", "3"], shape(A, b_key)) != one


@pytest.mark.parametrize(
    "commit_ts, expected", [(0, 0), (17, 1), (436644722644484097, 436644722644484097 % 16)]
)
def test_the_commit_ts_decides(commit_ts: int, expected: int) -> None:
    assert dispatcher(rule("ts")).partition("test", "t1", [], commit_ts=commit_ts) == expected


def test_named_columns_are_as_good_as_the_key() -> None:
    """Rules that count the same columns agree."""
    primary = Index(name="PRIMARY", unique=True, primary=True, columns=("a",))
    of_key = dispatcher(rule("index-value")).partition("test", "t1", ["11", "9"], shape(A, B))
    plain = shape(ShapeColumn("a", code=INT), B, indexes=(primary,))

    assert of_key == 2
    for counting in (rule("columns", columns=["A"]), rule("index-value", index="primary")):
        assert dispatcher(counting).partition("test", "t1", ["11", "9"], plain) == of_key


@pytest.mark.parametrize(
    "column, text, raw",
    [
        (ShapeColumn("a", code=INT, flags=0), "-5", b"-5"),
        (ShapeColumn("a", code=VARCHAR, flags=0), "naïve", "naïve".encode()),
        (ShapeColumn("a", code=VARCHAR, flags=int(Flag.BINARY)), "AP8=", b"\x00\xff"),
        (ShapeColumn("a", code=BLOB, flags=int(Flag.BINARY)), "", b""),
        (ShapeColumn("a", code=BLOB, flags=0), "AP8=", b"AP8="),
        (ShapeColumn("a", code=BIT, flags=0), "-1", b"18446744073709551615"),
        (ShapeColumn("a", code=INT, flags=int(Flag.BINARY)), "11", b"11"),
        (ShapeColumn("a"), "AP8=", b"AP8="),
    ],
)
def test_values_are_hashed_as_ticdc_holds_them(column: ShapeColumn, text: str, raw: bytes) -> None:
    by_column = dispatcher(rule("columns", columns=["a"]), partitions=WHOLE_HASH)

    found = by_column.partition("test", "t1", [text], shape(column))
    assert found == crc32(b"testt1") ^ crc32(b"a" + raw)


@pytest.mark.parametrize("generation, hashed", [("classic", b"anull"), ("new", b"")])
def test_the_generations_hash_null_differently(generation: str, hashed: bytes) -> None:
    by_column = dispatcher(
        rule("columns", columns=["a"]), partitions=WHOLE_HASH, generation=generation
    )

    found = by_column.partition("test", "t1", [None], shape(A))
    assert found == crc32(b"testt1") ^ crc32(hashed)


def test_the_first_rule_that_matches_decides() -> None:
    rules = (
        rule("ts", "db1.*"),
        rule("index-value", "DB?.t*"),
        rule("columns", "*.t2", columns=["b"]),
    )
    chosen = {
        ("db1", "t1"): "ts",
        ("db2", "t2"): "index-value",
        ("db2", "x"): "default",
        ("db33", "t2"): "columns",
        ("db33", "T2"): "columns",
    }
    insensitive = dispatcher(*rules)
    sensitive = dispatcher(*rules, case_sensitive=True)

    for (database, table), expected in chosen.items():
        assert insensitive._route(database, table).rule.partition == expected
    assert sensitive._route("db2", "t1").rule.partition == "default"
    assert sensitive._route("db33", "T2").rule.partition == "default"


@pytest.mark.parametrize(
    "counting, known, setting, reason",
    [
        (
            rule("columns", columns=["a", "c"]),
            shape(A, B),
            "sink.dispatchers[0].columns",
            "the rows of test.t1 have no 'c', but a, b",
        ),
        (
            rule("index-value", index="u"),
            shape(A, indexes=(Index(name="i", columns=("a",)),)),
            "sink.dispatchers[0].index",
            "test.t1 has no index 'u'; its indexes: i",
        ),
        (
            rule("index-value", index="i"),
            shape(A, indexes=(Index(name="i", columns=("a",)),)),
            "sink.dispatchers[0].index",
            "the index 'i' of test.t1 is not unique",
        ),
        (
            rule("index-value", index="u"),
            shape(A, indexes=(Index(name="u", unique=True, columns=("z",)),)),
            "sink.dispatchers[0].index",
            "the rows of test.t1 have no 'z', but a",
        ),
    ],
)
def test_a_rule_that_does_not_fit_the_table_is_refused(
    counting: DispatchRule, known: Shape, setting: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        dispatcher(counting).partition("test", "t1", ["1", "2"], known)

    assert (caught.value.setting, caught.value.reason) == (setting, reason)


def test_what_a_rule_needs_and_does_not_have() -> None:
    by_value = dispatcher(rule("index-value"))
    with pytest.raises(SchemaNotSeen):
        by_value.partition("test", "t1", ["1"])
    with pytest.raises(SchemaNotSeen):
        dispatcher(rule("index-value", index="u")).partition("test", "t1", ["1"], shape(A))
    with pytest.raises(ValueError, match="commit_ts"):
        dispatcher(rule("ts")).partition("test", "t1", [])
    binary = ShapeColumn("a", code=BLOB, flags=int(KEY))
    with pytest.raises(EncodeError, match=r"test\.t1\.a"):
        by_value.partition("test", "t1", ["no base64!"], shape(binary))
    with pytest.raises(ConfigError, match="partition-num"):
        Dispatcher(ChangefeedConfig())


def test_the_number_of_partitions_is_the_changefeeds_unless_given() -> None:
    config = ChangefeedConfig.from_uri("kafka://h:1/t?protocol=simple&partition-num=16")

    assert Dispatcher(config).partition("test", "t1", []) == 15
    assert Dispatcher(config, 1).partition("test", "t1", []) == 0


def test_a_dispatcher_can_be_sent_to_workers() -> None:
    one = dispatcher(rule("index-value"))

    assert pickle.loads(pickle.dumps(one)).partition("test", "t1", ["11"], shape(A)) == 2


# --- change batches -------------------------------------------------------------------------------


def change(kind: str, **members: Any) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(CHANGE_SCHEMA.names)
    row = {"kind": kind, "event": 0, "flags": 0, "database": "test", "table": "t1", "shape": 7}
    return empty | row | members


def test_a_batch_is_dispatched_row_by_row() -> None:
    book = ShapeBook()
    columns = [{"name": "a", "code": INT, "flags": int(KEY)}, {"name": "b", "code": INT}]
    book.add_shape(7, "test", "t1", {"columns": columns})
    rows = [
        change("insert", after=["11", None]),
        change("watermark", commit_ts=1, database=None, table=None, shape=None),
        change("delete", before=["22", "1"]),
        change("update", after=["22", "3"], before=["11", "2"]),
        change("insert", table="t2", after=["11", "0"]),
        change("ddl", shape=None),
    ]
    batch = pa.RecordBatch.from_pylist(rows, CHANGE_SCHEMA)
    by_value = dispatcher(rule("index-value", "*.t1"))

    assert by_value.partitions(batch, book) == pa.array([2, None, 11, 11, 5, None], pa.int32())
    assert by_value.partitions(batch.slice(2, 2), book) == pa.array([11, 11], pa.int32())
    assert by_value.partitions(batch.slice(0, 0), book) == pa.array([], pa.int32())


def test_rules_without_values_need_no_shape() -> None:
    rows = [change("insert", commit_ts=33, after=["1"]), change("delete", commit_ts=4, before=[])]
    batch = pa.RecordBatch.from_pylist(rows, CHANGE_SCHEMA)

    assert dispatcher(rule("ts")).partitions(batch) == pa.array([1, 4], pa.int32())
    assert dispatcher(rule("table")).partitions(batch) == pa.array([15, 15], pa.int32())
    with pytest.raises(SchemaNotSeen, match="shape 7"):
        dispatcher(rule("index-value")).partitions(batch)


# --- topics and broadcasts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression, table, expected",
    [
        ("hello_{schema}_{table}", ("test1", "table1"), "hello_test1_table1"),
        ("{schema}", ("test", "t"), "test"),
        ("{table}", ("test", "t"), "t"),
        ("a.{schema}-b_{table}.c", ("x", "y"), "a.x-b_y.c"),
        ("hard_coded", ("x", "y"), "hard_coded"),
        ("{schema}_{table}", ("naïve db", "a/b$c"), "na_ve_db_a_b_c"),
        ("{schema}_{table}", ("日本", "t"), "___t"),
        ("{schema}_{table}", ("s" * 200, "t" * 200), "s" * 200 + "_" + "t" * 48),
        ("{schema}{table}", (".", ""), "_"),
        ("{schema}{table}", (".", "."), "__"),
        ("{schema}{table}", (".", ".."), "..."),
    ],
)
def test_topics_by_expression(expression: str, table: tuple[str, str], expected: str) -> None:
    assert dispatcher(rule("ts", topic=expression)).topic(*table) == expected


def test_topics_of_a_feed() -> None:
    config = ChangefeedConfig.from_toml(
        """
        [sink]
        dispatchers = [
          {matcher = ['a.*'], topic = '{schema}_{table}'},
          {matcher = ['b.*'], partition = 'ts'},
        ]
        """,
        "kafka://h:9092/main?protocol=open-protocol",
    )
    found = Dispatcher(config, 3)

    assert found.topic("a", "t") == "a_t"
    assert found.topic("b", "t") == "main"
    assert found.topic("c", "t") == "main"
    assert found.ddl_topic("a", "t") == "a_t"
    assert found.ddl_topic("a", None) == "main"
    assert found.ddl_topic("a", "") == "main"
    assert found.topics([("a", "t"), ("a", "u"), ("b", "t")]) == ("a_t", "a_u", "main")
    assert dispatcher().topic("a", "t") is None
    assert dispatcher().topics([("a", "t")]) == ()


@pytest.mark.parametrize(
    "parameters, file, ddl, watermarks, bootstrap",
    [
        ("protocol=open-protocol", "", 3, 3, 3),
        ("protocol=craft", "", 3, 3, 3),
        ("protocol=canal-json", "", 1, 0, 3),
        ("protocol=canal-json&enable-tidb-extension=true", "", 1, 3, 3),
        ("protocol=simple", "", 3, 3, 3),
        ("protocol=simple", "[sink]\nsend-bootstrap-to-all-partition = false", 3, 3, 1),
    ],
)
def test_what_is_not_a_row_is_broadcast(
    parameters: str, file: str, ddl: int, watermarks: int, bootstrap: int
) -> None:
    found = Dispatcher(ChangefeedConfig.from_toml(file, f"kafka://h:1/t?{parameters}"), 3)

    assert found.ddl_partitions() == range(ddl)
    assert found.watermark_partitions() == range(watermarks)
    assert found.bootstrap_partitions() == range(bootstrap)


# --- the golden corpus ----------------------------------------------------------------------------


def true_partition(dispatched_by: Dispatcher, event: truth.Event) -> int:
    columns = tuple(
        ShapeColumn(column.name, code=column.code, flags=column.flags) for column in event.columns
    )
    database, table = event.database or "", event.table or ""
    texts = [column.text for column in event.columns]
    return dispatched_by.partition(database, table, texts, Shape(0, database, table, columns))


def rows_of(
    variant: Variant, dispatched_by: Dispatcher
) -> Iterator[tuple[dict[str, Any], Shape, int | None]]:
    """The rows of a stream, what is known of their columns, and where the batch says they go."""
    book = ShapeBook()
    names = ["kind", "partition", "commit_ts", "database", "table", "shape", "schema_version"]
    for batch in decoding.decode_variant(variant, corpus.messages(variant.name), batch_size=2000):
        book.add(batch)
        found = dispatched_by.partitions(batch, book).to_pylist()
        told = batch.select([*names, "after", "before"]).to_pylist()
        for row, partition in zip(told, found, strict=True):
            if row["kind"] not in truth.ROWS:
                assert partition is None
                continue
            known = book.shape(row["shape"], row["schema_version"])
            assert known is not None
            yield row, known, partition


@pytest.mark.parametrize("variant", STREAMS, ids=lambda variant: variant.name)
def test_rows_go_where_ticdc_sent_them(variant: Variant) -> None:
    """By the truth of each row, and by what its batch says of it.

    Where Canal-JSON names no key, for want of a primary key, the batch does not know it.
    """
    decoding.require(variant.protocol)
    by_value = dispatcher(rule("index-value"), partitions=PARTITIONS, generation=variant.generation)
    lost = expectation.PHYSICAL if expectation.rules(variant).commit_ts == "milliseconds" else 0
    due: dict[tuple[Any, ...], list[tuple[dict[str, str | None], int]]] = defaultdict(list)
    for event in truth.events(variant.truth):
        if event.kind in truth.ROWS:
            handle = {column.name: column.text for column in event.columns if column.is_handle}
            name = (event.database, event.table, event.commit_ts >> lost)
            due[name].append((handle, true_partition(by_value, event)))

    seen = known_by_batch = 0
    for row, shape_of_row, partition in rows_of(variant, by_value):
        texts = row["after"] if row["after"] is not None else row["before"]
        names = (column.name for column in shape_of_row.columns)
        side = dict(zip(names, texts, strict=True))
        alike = due[row["database"], row["table"], row["commit_ts"] >> lost]
        expected = {place for handle, place in alike if handle.items() <= side.items()}
        assert expected == {row["partition"]}
        if shape_of_row.keys or variant.protocol != "canal":
            assert partition == row["partition"]
            known_by_batch += 1
        seen += 1
    assert seen >= sum(map(len, due.values()))
    assert known_by_batch > 100
