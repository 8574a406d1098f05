"""What a dump is: names, instant, header, generated columns, zones, losses, and what is refused."""

import gzip
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, S3FileSystem, SubTreeFileSystem

from tests.support import corpus, dumps
from tests.support.s3 import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore
from tidegate.model import ConfigError, DumpError, TableSchema, tso_from_ms
from tidegate.sql.tables import TableBook
from tidegate.upstream.dump import Dump, DumpOptions, names, read_split
from tidegate.upstream.dump.names import FileKind

FINISHED = "Finished dump at: 2026-11-17 11:15:48\n"
METADATA = (
    "Started dump at: 2026-11-17 11:15:48\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n"
    f"\tPos: 470525974132555776\n\tGTID:\n\n{FINISHED}"
)
SIMPLE = "`id` int NOT NULL, `v` varchar(20), PRIMARY KEY (`id`)"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., str]:
    """Makes a dump of one table `d.t`."""

    def make(columns: str = SIMPLE, metadata: str | None = METADATA, **files: bytes | str) -> str:
        if metadata is not None:
            (tmp_path / "metadata").write_text(metadata)
        (tmp_path / "d.t-schema.sql").write_text(f"CREATE TABLE `t` ({columns});\n")
        for name, data in files.items():
            path = tmp_path / name.replace("__", "-").replace("_", ".")
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(tmp_path)

    return make


def rows(dump: Dump, target: int = 1 << 30) -> list[tuple[str | None, ...]]:
    (table,) = dump.tables.values()
    return dumps.rows_of(dump, table, target_bytes=target)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "stem", "index", "format", "compression"),
    [
        ("metadata", FileKind.METADATA, "", "", "", ""),
        ("d-schema-create.sql", FileKind.DATABASE, "d", "", "sql", ""),
        ("d.t-schema.sql", FileKind.TABLE, "d.t", "", "sql", ""),
        ("d.t-schema.sql.zst", FileKind.TABLE, "d.t", "", "sql", "zstd"),
        ("d.v-schema-view.sql", FileKind.VIEW, "d.v", "", "sql", ""),
        ("d.a%2Dschema.000000000.csv", FileKind.DATA, "d.a%2Dschema", "000000000", "csv", ""),
        ("d.a%2Dschema-schema.sql", FileKind.TABLE, "d.a%2Dschema", "", "sql", ""),
        ("d.t.0000000010003.sql.gz", FileKind.DATA, "d.t", "0000000010003", "sql", "gzip"),
        ("d.t.000000000.csv.snappy", FileKind.DATA, "d.t", "000000000", "csv", "snappy"),
        ("d.t.000000000.snappy.parquet", FileKind.DATA, "d.t", "000000000", "parquet", ""),
        ("d.t.000000000.zst.parquet", FileKind.DATA, "d.t", "000000000", "parquet", ""),
        ("d.t.000000000.parquet", FileKind.DATA, "d.t", "000000000", "parquet", ""),
        ("d.t.csv", FileKind.DATA, "d.t", "", "csv", ""),
        ("d.t.0.sql", FileKind.DATA, "d.t", "0", "sql", ""),
    ],
)
def test_names_are_taken_apart(
    name: str, kind: FileKind, stem: str, index: str, format: str, compression: str
) -> None:
    parsed = names.parse(name)
    assert parsed is not None
    assert (parsed.kind, parsed.stem, parsed.index) == (kind, stem, index)
    if kind is not FileKind.METADATA:
        assert (parsed.format, parsed.compression) == (format, compression)


@pytest.mark.parametrize(
    "name",
    [
        "pp1-placement-policy-create.sql",
        "d.s-schema-sequence.sql.gz",
        "_SUCCESS",
        ".x",
        "dumpling.log",
    ],
)
def test_files_that_are_not_needed_are_passed_over(name: str) -> None:
    parsed = names.parse(name)
    assert parsed is not None
    assert parsed.kind is FileKind.OTHER


@pytest.mark.parametrize(
    "name", ["result.000000000.csv", "t.csv", "d.t.x.1.csv", "d.t.000000000.txt", "notes"]
)
def test_a_file_that_no_rule_explains_is_refused(name: str, folder: Callable[..., str]) -> None:
    place = folder()
    Path(place, name).write_text("1\n")
    with pytest.raises(DumpError, match=r"(is not named as Dumpling names files|no result)"):
        Dump.open(place)


@pytest.mark.parametrize(
    ("escaped", "name"),
    [
        ("D%2Eb-x", "D.b-x"),
        ("a%2Dschema", "a-schema"),
        ("100%25", "100%"),
        ("%22%E8", '"\ufffd'),
        ("表", "表"),
    ],
)
def test_percent_escapes_are_read(escaped: str, name: str) -> None:
    assert names.unescaped(escaped) == name


def test_a_view_is_not_a_table(folder: Callable[..., str]) -> None:
    place = folder()
    Path(place, "d.w-schema.sql").write_text("CREATE TABLE `w`(\n`id` int\n)ENGINE=MyISAM;\n")
    Path(place, "d.w-schema-view.sql").write_text("CREATE VIEW `w` AS SELECT 1;\n")
    assert [str(name) for name in Dump.open(place).tables] == ["d.t"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (None, "there is no file `metadata`"),
        (METADATA.removesuffix(FINISHED), "does not say that the dump was finished"),
        (METADATA.replace("tidb-binlog", "mysql-bin.000003"), "not a dump of TiDB"),
        (METADATA.replace("470525974132555776", "475"), "475 is not a TSO"),
        (METADATA.replace("470525974132555776", "soon"), "neither a TSO nor a time"),
        (FINISHED, "has no position"),
        (
            METADATA.replace(
                FINISHED,
                "SHOW MASTER STATUS: /* AFTER CONNECTION POOL ESTABLISHED */\n\tLog: tidb-binlog\n"
                f"\tPos: 470525974132555999\n\tGTID:\n\n{FINISHED}",
            ),
            "not at one instant",
        ),
    ],
)
def test_a_dump_without_an_instant_is_refused(
    metadata: str | None, reason: str, folder: Callable[..., str]
) -> None:
    with pytest.raises(DumpError, match=reason):
        Dump.open(folder(metadata=metadata))


def test_an_export_without_metadata_is_opened_with_its_instant(folder: Callable[..., str]) -> None:
    place = folder(metadata=None)
    assert (
        Dump.open(place, options=DumpOptions(snapshot=470525974132555776)).snapshot_ts
        == 470525974132555776
    )


@pytest.mark.parametrize(
    ("zone", "ms"),
    [
        ("UTC", 1794914100000),
        ("+08:00", 1794914100000 - 8 * 3600_000),
        ("Asia/Shanghai", 1794914100000 - 8 * 3600_000),
    ],
)
def test_an_instant_may_be_a_time(zone: str, ms: int, folder: Callable[..., str]) -> None:
    place = folder(metadata=METADATA.replace("470525974132555776", "2026-11-17 11:15:00"))
    assert Dump.open(place, options=DumpOptions(time_zone=zone)).snapshot_ts == tso_from_ms(ms)


def test_a_time_that_clocks_showed_twice_is_no_instant(folder: Callable[..., str]) -> None:
    place = folder(metadata=METADATA.replace("470525974132555776", "2026-10-25 02:30:00"))
    with pytest.raises(DumpError, match="exactly once"):
        Dump.open(place, options=DumpOptions(time_zone="Europe/Berlin"))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"d_x_000000000_csv": "1\n"}, r"d\.x has files with rows and no d\.x-schema\.sql"),
        ({"d_t_000000000_csv": "1\n", "d_t_000000001_sql": "1"}, "two formats"),
        ({"d_t_000000000_csv": "1\n", "d_t_000000000_csv_gz": "1"}, "in two forms"),
        ({"d_t_000000000_csv": ""}, "is empty, which Dumpling never leaves"),
        ({"d_t_0000000010000_csv": "1", "d_t_0000000010002_csv": "1"}, "is missing: 0000000010001"),
        ({"d_x__schema_sql": "CREATE TABLE `y` (`a` int);"}, "it creates the table y"),
        ({"d_x__schema_sql": "CREATE TABLE `x` (`a` nonsense);"}, "its statement cannot be read"),
        ({"d_x__schema_sql": b"CREATE TABLE `x` (`a\xff` int);"}, "byte 20 is not UTF-8"),
    ],
)
def test_mixed_and_damaged_dumps_are_refused(
    files: dict[str, str], reason: str, folder: Callable[..., str]
) -> None:
    with pytest.raises(DumpError, match=reason):
        Dump.open(folder(**files))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="there is no such folder"):
        Dump.open(str(tmp_path / "nothing"))


# --- rows -----------------------------------------------------------------------------------------

CSV = '"id","v"\r\n1,"a"\r\n2,\\N\r\n'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('"id","v"\r\n1,"a"\r\n2,"b', "at byte 21, the file ends in the middle of a row"),
        ('"id","v"\r\n1,"a"\r\n2,"b"', "the file ends in the middle of a row"),
        ('"id","v"\r\n1,"a"\r\n2\r\n', "at byte 18, the row has 1 fields, and the table has 2"),
        ('"id","v"\r\n1,"a",3\r\n', "at byte 15, the row has more than 2 fields"),
        ('"id","v"\r\nx,"a"\r\n', "at byte 10, the value of column 'id' is not a whole number"),
        ('"id","v"\r\n1,a\r\n', "at byte 12, the value of column 'v' is not quoted"),
        ('"id","v"\r\n1,"a\nb"\r\n', "escape-backslash=true never writes.*`escape_backslash`"),
        ('"id","v"\r\n1,"a\\x"\r\n', "has a backslash that escapes nothing.*`escape_backslash`"),
        ('"id","v"\r\n1,"a""b"\r\n', "the row must end here.*`escape_backslash`"),
        (b'"id","v"\r\n1,"\xff"\r\n', "at byte 13, the value of column 'v' is not UTF-8"),
    ],
)
def test_malformed_csv_is_refused_with_its_byte(
    data: str, reason: str, folder: Callable[..., str]
) -> None:
    with pytest.raises(DumpError, match=rf"d\.t\.000000000\.csv: .*{reason}"):
        rows(Dump.open(folder(d_t_000000000_csv=data)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("INSERT INTO `t` VALUES\n(1,'a'),\n", "ends in the middle of a statement"),
        ("INSERT INTO `t` VALUES\n(1,'a", "ends in the middle of a row"),
        ("INSERT INTO `t` VALUES\n(1);\n", "at byte 25, the row does not have 2 values"),
        ("INSERT INTO `t` VALUES\n(1,'a',2);\n", "the row does not have 2 values"),
        ("INSERT INTO `u` VALUES\n(1,'a');\n", "not for the table 't'"),
        ("INSERT INTO `t` (`id`,`w`) VALUES\n(1,'a');\n", "has the columns id, w"),
        ("DELETE FROM `t`;\n", "at byte 0, a statement is neither a comment nor INSERT INTO"),
        ("INSERT INTO `t` VALUES\n(1,'a''b');\n", "doubled quote.*`escape_backslash`"),
        ("INSERT INTO `t` VALUES\n(1,'a\nb');\n", "line end.*`escape_backslash`"),
        ("INSERT INTO `t` VALUES\n(1,x'00');\n", "is binary, and the column is not"),
        ("INSERT INTO `t` VALUES\n(1,now());\n", "is not a literal|is not quoted|literal"),
    ],
)
def test_malformed_sql_is_refused_with_its_byte(
    data: str, reason: str, folder: Callable[..., str]
) -> None:
    with pytest.raises(DumpError, match=rf"d\.t\.000000000\.sql: at byte \d+|{reason}") as raised:
        rows(Dump.open(folder(d_t_000000000_sql=data)))
    raised.match(reason)


def test_a_column_list_may_be_in_another_order(folder: Callable[..., str]) -> None:
    data = "INSERT INTO `t` (`v`,`id`) VALUES\n('a',1),\n(NULL,2);\n" * 2
    dump = Dump.open(folder(d_t_000000000_sql=data))
    assert rows(dump) == [("1", "a"), ("2", None)] * 2
    assert rows(dump, 5) == rows(dump)


def test_a_file_whose_statements_differ_is_not_cut(folder: Callable[..., str]) -> None:
    data = (
        "INSERT INTO `t` (`v`,`id`) VALUES\n('1',1);\nINSERT INTO `t` VALUES\n(2,'2'),\n(3,'3');\n"
    )
    dump = Dump.open(folder(d_t_000000000_sql=data))
    assert rows(dump) == [("1", "1"), ("2", "2"), ("3", "3")]
    with pytest.raises(DumpError, match="do not list the same columns"):
        rows(dump, 5)


def test_a_name_that_ends_with_a_backquote_is_not_quoted_by_dumpling(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(METADATA)
    (tmp_path / "d.a`-schema.sql").write_text("CREATE TABLE `a``` (`id` int);\n")
    (tmp_path / "d.a`.000000000.sql").write_text("INSERT INTO a`` VALUES\n(1);\n")
    assert rows(Dump.open(str(tmp_path))) == [("1",)]


@pytest.mark.parametrize("suffix", ["gz", "zst", "snappy"])
def test_a_compressed_file_that_was_cut_off_is_refused(
    suffix: str, folder: Callable[..., str]
) -> None:
    data = ('"id","v"\r\n' + "".join(f'{i},"{i * 7919}"\r\n' for i in range(5000))).encode()
    if suffix == "gz":
        packed = gzip.compress(data)
    elif suffix == "zst":
        packed = pa.compress(data, codec="zstd", asbytes=True)
    else:
        packed = b"\xff\x06\x00\x00sNaPpY\x01\xff\xff\x00abcd"
    place = folder(**{f"d_t_000000000_csv_{suffix}": packed[: len(packed) // 2 + 8]})
    with pytest.raises(DumpError):
        rows(Dump.open(place, options=DumpOptions(header=True)))


def test_a_split_cuts_between_rows_and_can_be_pickled(folder: Callable[..., str]) -> None:
    lines = "".join(f'{i},"{"x" * (i % 50)}\\n,\\"\\r\\n"\r\n' for i in range(500))
    dump = Dump.open(folder(d_t_000000000_csv='"id","v"\r\n' + lines))
    (table,) = dump.tables.values()
    splits = dump.splits(table, 300)
    assert len(splits) > 20
    assert sum(split.size for split in splits) == table.size
    found = [
        value
        for split in splits
        for batch in read_split(pickle.loads(pickle.dumps(split)))
        for value in batch["id"].to_pylist()
    ]
    assert found == [str(i) for i in range(500)]


def test_without_escapes_only_a_table_of_numbers_and_times_is_cut(
    folder: Callable[..., str],
) -> None:
    options = DumpOptions(escape_backslash=False, header=False)
    text = Dump.open(folder(d_t_000000000_csv='1,"a\r\n2,b"\r\n' * 9), options=options)
    (table,) = text.tables.values()
    assert len(text.splits(table, 10)) == 1
    assert rows(text, 10) == [("1", "a\r\n2,b")] * 9
    numbers = Dump.open(
        folder("`id` int, `at` datetime", d_t_000000000_csv='1,"2020-01-02 03:04:05"\r\n' * 9),
        options=options,
    )
    (table,) = numbers.tables.values()
    assert len(numbers.splits(table, 30)) > 5
    assert rows(numbers, 30) == [("1", "2020-01-02 03:04:05")] * 9


def test_a_range_of_a_file_with_line_ends_in_values_is_refused_not_misread(
    folder: Callable[..., str],
) -> None:
    dump = Dump.open(
        folder(d_t_000000000_csv='1,"a\r\n2,""b"\r\n' * 9), options=DumpOptions(header=False)
    )
    with pytest.raises(DumpError, match="`escape_backslash`"):
        rows(dump, 10)


def test_any_file_system_of_arrow_serves(folder: Callable[..., str]) -> None:
    place = folder(d_t_000000000_csv=CSV)
    files = SubTreeFileSystem(str(Path(place).parent), LocalFileSystem())
    assert rows(Dump.open(Path(place).name, files)) == [("1", "a"), ("2", None)]


@pytest.mark.parametrize("variant", ["bank.csv", "bank.sql", "bank.parquet"])
def test_a_dump_in_s3_is_read(variant: str, object_store: ObjectStore, tmp_path: Path) -> None:
    files = S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region=REGION,
        endpoint_override=object_store.endpoint,
    )
    local = Dump.open(dumps.unpacked(variant, tmp_path))
    for path in tmp_path.iterdir():
        with files.open_output_stream(f"lake/{variant}/{path.name}") as out:
            out.write(path.read_bytes())
    dump = Dump.open(f"lake/{variant}", files)
    assert dump.snapshot_ts == local.snapshot_ts
    for name, table in dump.tables.items():
        found = dumps.rows_of(dump, table, target_bytes=2000)
        assert found == dumps.rows_of(local, local.tables[name])


# --- header ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "data", "expected"),
    [
        (SIMPLE, '"id","v"\n1,"a"\n', True),
        (SIMPLE, '1,"a"\n', False),
        ("`a` text, `b` text", '"x","b"\n', False),
        ("`a` text, `at` datetime", '"a","at"\n', True),
        ("`long_name` varchar(3)", '"long_name"\n', True),
        ("`doc` json", '"doc"\n', True),
        ("`e` enum('a','b')", '"e"\n', True),
    ],
)
def test_a_header_is_detected(
    columns: str, data: str, expected: bool, folder: Callable[..., str]
) -> None:
    assert Dump.open(folder(columns, d_t_000000000_csv=data)).has_header is expected


def test_a_first_row_that_may_be_either_is_asked_for(folder: Callable[..., str]) -> None:
    place = folder("`a` text, `b` text", d_t_000000000_csv='"a","b"\r\n')
    with pytest.raises(DumpError, match="Set the option `header`"):
        rows(Dump.open(place))
    assert rows(Dump.open(place, options=DumpOptions(header=False))) == [("a", "b")]
    assert rows(Dump.open(place, options=DumpOptions(header=True))) == []


def test_another_table_shows_whether_there_is_a_header(folder: Callable[..., str]) -> None:
    place = folder("`a` text", d_t_000000000_csv='"a"\r\n"a"\r\n')
    Path(place, "d.u-schema.sql").write_text("CREATE TABLE `u` (`n` int);\n")
    Path(place, "d.u.000000000.csv").write_text('"n"\r\n5\r\n')
    dump = Dump.open(place)
    assert [dumps.rows_of(dump, table) for table in dump.tables.values()] == [[("a",)], [("5",)]]


def test_a_header_of_other_columns_is_refused(folder: Callable[..., str]) -> None:
    place = folder(d_t_000000000_csv='"id","w"\r\n')
    with pytest.raises(DumpError, match="the header is id, w, and the table has id, v"):
        rows(Dump.open(place, options=DumpOptions(header=True)))


# --- generated columns, zones, losses -------------------------------------------------------------

GENERATED = "`id` int, `b` int GENERATED ALWAYS AS (`id` * 2) VIRTUAL, `c` int GENERATED ALWAYS AS (`id` + 1) STORED"


def add_c(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("c", pa.array([str(int(v) + 1) for v in batch["id"].to_pylist()]))


def test_a_stored_generated_column_needs_the_database_or_a_way_to_fill_it(
    folder: Callable[..., str],
) -> None:
    dump = Dump.open(folder(GENERATED, d_t_000000000_csv='"id"\r\n5\r\n'))
    (table,) = dump.tables.values()
    assert table.left_out == ("c",)
    assert "stored generated columns" in (table.needs_database or "")
    with pytest.raises(DumpError, match="Dumpling leaves out stored generated columns"):
        dump.splits(table)
    assert dumps.rows_of(dump, table, fill=add_c) == [("5", "6")]


def test_the_golden_table_with_generated_columns_names_them(tmp_path: Path) -> None:
    dump = Dump.open(dumps.unpacked("types.csv", tmp_path))
    needing = {
        name.table: table.left_out for name, table in dump.tables.items() if table.needs_database
    }
    assert needing == {"gen": ("c", "d")}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("UTC", "UTC", "2020-07-01 12:00:00"),
        ("Asia/Shanghai", "UTC", "2020-07-01 04:00:00"),
        ("+08:00", "UTC", "2020-07-01 04:00:00"),
        ("UTC", "America/New_York", "2020-07-01 08:00:00"),
        ("Africa/Monrovia", "UTC", "2020-07-01 12:00:00"),
    ],
)
def test_timestamps_are_moved_to_the_zone_of_the_feed(
    source: str, target: str, expected: str, folder: Callable[..., str]
) -> None:
    place = folder(
        "`a` timestamp NULL, `b` datetime, `c` timestamp(3) NULL",
        d_t_000000000_csv='"a","b","c"\r\n"2020-07-01 12:00:00","2020-07-01 12:00:00","2020-07-01 12:00:00.250"\r\n'
        '"0000-00-00 00:00:00",\\N,\\N\r\n',
    )
    options = DumpOptions(time_zone=source, feed_zone=target)
    assert rows(Dump.open(place, options=options)) == [
        (expected, "2020-07-01 12:00:00", f"{expected}.250"),
        ("0000-00-00 00:00:00", None, None),
    ]


def test_a_timestamp_that_is_no_time_is_refused(folder: Callable[..., str]) -> None:
    place = folder("`a` timestamp NULL", d_t_000000000_csv='"a"\r\n"2020-13-01 12:00:00"\r\n')
    with pytest.raises(DumpError, match="'2020-13-01 12:00:00' is not a time"):
        rows(Dump.open(place, options=DumpOptions(time_zone="+08:00")))


def test_what_dumpling_loses_is_named(folder: Callable[..., str]) -> None:
    place = folder(
        "`f` float, `d` double, `at` timestamp NULL, `e` enum('','x')",
        d_t_000000000_csv='"f","d","at","e"\r\n',
    )
    dump = Dump.open(place, options=DumpOptions(time_zone="Europe/Berlin"))
    (table,) = dump.tables.values()
    assert [loss.column for loss in dump.losses(table)] == ["f", "at", "e"]
    assert "six digits" in str(dump.losses(table)[0])


# --- binary dialects and Parquet ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "value"),
    [("`b` bit(8)", "AA=="), ("`b` binary(3)", "YWJj"), ("`b` binary(2)", "6162")],
)
def test_a_dialect_that_was_not_given_is_noticed_where_it_can_be(
    columns: str, value: str, folder: Callable[..., str]
) -> None:
    place = folder(columns, d_t_000000000_csv=f'"{value}"\r\n')
    with pytest.raises(DumpError, match="`dialect`"):
        rows(Dump.open(place, options=DumpOptions(header=False)))


def test_parquet_of_tidb_cloud_is_cast_from_the_types_it_has(folder: Callable[..., str]) -> None:
    place = folder(
        "`i` int unsigned, `b` bigint, `u` bigint unsigned, `d` decimal(30,4), `s` decimal(5,2), "
        "`f` float, `k` date, `t` timestamp NULL, `x` bit(9), `y` year"
    )
    table = pa.table(
        {
            "i": pa.array([Decimal(4294967295)], pa.decimal128(20, 0)),
            "b": pa.array([Decimal(-(2**63))], pa.decimal128(20, 0)),
            "u": pa.array(["18446744073709551615"]),
            "d": pa.array(["-12345678901234567890.0001"]),
            "s": pa.array([Decimal("-0.05")], pa.decimal128(5, 2)),
            "f": pa.array([0.1], pa.float32()),
            "k": pa.array([18262], pa.date32()),
            "t": pa.array([1577934245000000], pa.timestamp("us", "UTC")),
            "x": pa.array([b"\x01\xff"]),
            "y": pa.array([0], pa.int32()),
        }
    )
    pq.write_table(table, Path(place, "d.t.000000000.parquet"))
    dump = Dump.open(place, options=DumpOptions(time_zone="+08:00", feed_zone="+01:00"))
    assert rows(dump) == [
        ("4294967295", str(-(2**63)), "18446744073709551615", "-12345678901234567890.0001",
         "-0.05", "0.1", "2020-01-01", "2020-01-02 04:04:05", "511", "0")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "array", "reason"),
    [
        ("`d` decimal(5,2)", pa.array([1.5]), "of type decimal.* is double there"),
        ("`d` datetime NOT NULL", pa.array([None], pa.timestamp("us")), "zero date"),
        ("`d` datetime", pa.array([1], pa.timestamp("us")), "not a date of MySQL"),
        ("`e` int", pa.array([1]), "the file has no column e"),
    ],
)
def test_parquet_that_is_not_exact_is_refused(
    columns: str, array: pa.Array, reason: str, folder: Callable[..., str]
) -> None:
    place = folder(columns)
    pq.write_table(pa.table({"d": array}), Path(place, "d.t.000000000.parquet"))
    with pytest.raises(DumpError, match=reason):
        rows(Dump.open(place))


# --- schemas --------------------------------------------------------------------------------------


def comparable(schema: TableSchema) -> TableSchema:
    """What a statement says of a table, whatever spelled it."""
    indexes = tuple(sorted(schema.indexes or (), key=lambda index: index.name))
    return replace(schema, table_id=None, version=None, indexes=indexes)


@pytest.mark.parametrize("scenario", ["bank", "ddl", "nopk", "types"])
def test_a_schema_is_that_of_the_changefeed(scenario: str, tmp_path: Path) -> None:
    dump = Dump.open(dumps.unpacked(f"{scenario}.csv", tmp_path))
    book = TableBook()
    for event in corpus.events(scenario):
        if event["kind"] == "ddl":
            table = event["table"] or {}
            book.run(event["query"], table.get("schema") or "")
    for name, table in dump.tables.items():
        known = book.get(*name)
        assert known is not None, name
        assert comparable(table.schema) == comparable(known)


def test_backslashes_in_show_create_table_are_plain_characters(folder: Callable[..., str]) -> None:
    place = folder(
        r"`e` enum('a\b','c\','\n')", d_t_000000000_csv='"a\\\\b"\r\n"c\\\\"\r\n"\\n"\r\n'
    )
    dump = Dump.open(place, options=DumpOptions(header=False))
    (table,) = dump.tables.values()
    assert table.schema.columns[0].elements == ("a\\b", "c\\", "\n")
    assert rows(dump) == [("1",), ("2",), ("3",)]


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"dialect": "oracle"},
        {"separator": ""},
        {"time_zone": "Mars/Base"},
        {"null_value": "0"},
        {"null_value": '"NULL"'},
        {"delimiter": "", "escape_backslash": False},
        {"delimiter": "", "null_value": "NULL"},
        {"delimiter": "", "line_terminator": "|"},
    ],
)
def test_options_that_cannot_be_read_safely_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        DumpOptions(**wrong)  # type: ignore[arg-type]


def test_the_reader_loads_no_spark() -> None:
    script = "import sys, tidegate.upstream.dump; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
