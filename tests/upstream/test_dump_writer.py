"""Random tables, written in each dialect by a small writer of our own, read back equal."""

import base64
import gzip
import io
import math
import pickle
import struct
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.dumps import shortest_float
from tidegate.model import DumpError
from tidegate.upstream.dump import Dump, DumpOptions, read_split
from tidegate.upstream.dump import split as split_module
from tidegate.wire.kernel.text import crc32c

METADATA = (
    "Started dump at: 2026-11-17 11:15:48\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n"
    "\tPos: 470525974132555776\n\tGTID:\n\nFinished dump at: 2026-11-17 11:15:48\n"
)
SET_COMMENTS = "/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n/*!40101 SET NAMES binary*/;\n"


@dataclass(frozen=True)
class Dialect:
    """How the writer writes CSV or SQL."""

    format: str = "csv"
    escapes: bool = True
    header: bool = True
    separator: str = ","
    delimiter: str = '"'
    null: str = "\\N"
    terminator: str = "\r\n"
    binary: str = ""
    column_list: bool = False

    @property
    def options(self) -> DumpOptions:
        return DumpOptions(
            escape_backslash=self.escapes,
            header=self.header,
            separator=self.separator,
            delimiter=self.delimiter,
            null_value=self.null,
            line_terminator=self.terminator if self.terminator not in ("\n", "\r\n") else "",
            dialect=self.binary,
        )


DIALECTS = [
    Dialect(),
    Dialect(header=False, terminator="\n"),
    Dialect(escapes=False),
    Dialect(escapes=False, header=False, binary="bigquery"),
    Dialect(binary="snowflake"),
    Dialect(binary="redshift", separator="|+|", delimiter="$$"),
    Dialect(separator="\t", delimiter="", terminator="\n"),
    Dialect(escapes=False, separator="||", delimiter="'", null="NULL"),
    Dialect(terminator="|\n", header=False),
    Dialect(format="sql"),
    Dialect(format="sql", column_list=True),
    Dialect(format="sql", escapes=False),
]


@dataclass(frozen=True)
class Type:
    """A column type: what values it has, and how the writer and the feed write them."""

    sql: str
    values: st.SearchStrategy
    form: str  # number, string, bytes


def _texts() -> st.SearchStrategy[str]:
    marks = st.sampled_from(
        list("\\\"'`,;()\r\n\t\0\x1aN$|+0nr %\ufeff表") + ["\\N", "\r\n", "),\n("]
    )
    return st.lists(marks | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)


TYPES = {
    "i": Type("bigint", st.integers(-(2**63), 2**63 - 1), "number"),
    "u": Type("bigint unsigned", st.integers(0, 2**64 - 1), "number"),
    "d": Type("decimal(20,5)", st.decimals(-(10**14), 10**14, places=5), "number"),
    "f": Type("float", st.floats(width=32, min_value=-(2**40), max_value=2**40), "float"),
    "g": Type("double", st.floats(allow_nan=False, allow_infinity=False), "double"),
    "t": Type("longtext", _texts(), "string"),
    "b": Type("longblob", st.binary(max_size=20), "bytes"),
    "x": Type("bit(20)", st.integers(0, 2**20 - 1), "bit"),
    "e": Type("enum('a','b''c','表','back\\slash')", st.integers(0, 4), "enum"),
    "s": Type("set('x','y','z')", st.integers(0, 7), "set"),
    "m": Type("datetime(3)", st.datetimes().map(lambda at: f"{at:%H:%M:%S}"), "datetime"),
}
ELEMENTS = {"e": ["a", "b'c", "表", "back\\slash"], "s": ["x", "y", "z"]}


def shown(name: str, value: object) -> bytes:
    """A value as the server shows it."""
    form = TYPES[name].form
    if form == "bit":
        return value.to_bytes(3, "big")
    if form == "bytes":
        return value
    if form == "enum":
        return ("" if value == 0 else ELEMENTS["e"][value - 1]).encode()
    if form == "set":
        return ",".join(each for i, each in enumerate(ELEMENTS["s"]) if value >> i & 1).encode()
    if form == "datetime":
        return f"2020-02-03 {value}.120".encode()
    if form == "float":
        return (shortest_float(repr(value)) if abs(value) > 1e-14 else "0").encode()
    if form == "double":
        return repr(value).encode()
    return str(value).encode()


def in_feed(name: str, value: object) -> str | None:
    """A value in the change batch."""
    if value is None:
        return None
    form = TYPES[name].form
    if form in ("bit", "enum", "set"):
        return str(value)
    if form == "bytes":
        return base64.b64encode(value).decode()
    if form == "double":
        text = format(Decimal(repr(value)).normalize(), "f")
        return "-0" if text == "0" and math.copysign(1, value) < 0 else text
    return shown(name, value).decode()


def escaped(data: bytes, marks: dict[int, bytes]) -> bytes:
    return b"".join(marks.get(byte, bytes([byte])) for byte in data)


BACKSLASHES = {0: b"\\0", 10: b"\\n", 13: b"\\r", 92: b"\\\\"}
SQL_BACKSLASHES = BACKSLASHES | {39: b"\\'", 34: b'\\"', 26: b"\\Z"}


def csv_value(dialect: Dialect, name: str, value: object) -> bytes:
    if value is None:
        return dialect.null.encode()
    data, form, quote = shown(name, value), TYPES[name].form, dialect.delimiter.encode()
    if form in ("number", "float", "double"):
        return data
    if form in ("bytes", "bit") and dialect.binary:
        data = base64.b64encode(data) if dialect.binary == "bigquery" else data.hex().encode()
    elif dialect.escapes:
        special = (quote or dialect.separator.encode())[:1]
        data = escaped(data, BACKSLASHES | {special[0]: b"\\" + special})
    else:
        data = data.replace(quote, quote + quote)
    return quote + data + quote


def sql_value(dialect: Dialect, name: str, value: object) -> bytes:
    if value is None:
        return b"NULL"
    data, form = shown(name, value), TYPES[name].form
    if form in ("number", "float", "double"):
        return data
    if form in ("bytes", "bit"):
        return b"x'" + data.hex().encode() + b"'"
    if dialect.escapes:
        return b"'" + escaped(data, SQL_BACKSLASHES) + b"'"
    return b"'" + data.replace(b"'", b"''") + b"'"


def written(dialect: Dialect, names: list[str], rows: list[tuple]) -> bytes:
    """A file of a table `t` with these columns."""
    if dialect.format == "csv":
        separator, end = dialect.separator.encode(), dialect.terminator.encode()
        quote = dialect.delimiter.encode()
        lines = [
            [csv_value(dialect, *pair) for pair in zip(names, row, strict=True)] for row in rows
        ]
        if dialect.header:
            lines.insert(0, [quote + name.encode() + quote for name in names])
        return b"".join(separator.join(line) + end for line in lines)
    listed = " (" + ",".join(f"`{name}`" for name in names) + ")" if dialect.column_list else ""
    head = f"INSERT INTO `t`{listed} VALUES\n".encode()
    out = SET_COMMENTS.encode()
    for start in range(0, len(rows), 3):
        tuples = [
            b"("
            + b",".join(sql_value(dialect, *pair) for pair in zip(names, row, strict=True))
            + b")"
            for row in rows[start : start + 3]
        ]
        out += head + b",\n".join(tuples) + b";\n"
    return out


def framed_snappy(data: bytes) -> bytes:
    out = io.BytesIO(b"")
    out.write(b"\xff\x06\x00\x00sNaPpY")
    for number, start in enumerate(range(0, len(data), 1000)):
        block = data[start : start + 1000]
        crc = crc32c(block)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        body = block if number % 2 else pa.compress(block, codec="snappy", asbytes=True)
        out.write(bytes([number % 2]) + (len(body) + 4).to_bytes(3, "little"))
        out.write(struct.pack("<I", masked) + body)
    return out.getvalue()


COMPRESSIONS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".snappy": framed_snappy,
}


def dump_of(folder: Path, names: list[str], files: dict[str, bytes], options: DumpOptions) -> Dump:
    columns = ",\n".join(f"  `{name}` {TYPES[name].sql} DEFAULT NULL" for name in names)
    (folder / "metadata").write_text(METADATA)
    (folder / "d.t-schema.sql").write_text(f"{SET_COMMENTS}CREATE TABLE `t` (\n{columns}\n);\n")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Dump.open(str(folder), options=options)


def read_all(dump: Dump, target: int) -> list[tuple]:
    (table,) = dump.tables.values()
    rows: list[tuple] = []
    for split in dump.splits(table, target):
        for batch in read_split(pickle.loads(pickle.dumps(split))):
            batch.validate(full=True)
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple]]:
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=5, unique=True))
    row = st.tuples(*(st.none() | TYPES[name].values for name in names))
    return names, draw(st.lists(row, min_size=1, max_size=8))


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables(), target=st.integers(1, 80), block=st.integers(1, 200))
@example(
    table=(["t"], [("a\\",), ("\\",), ('"',), ('\\"',), ("",), (None,), ("\\N",)]),
    target=1,
    block=1,
)
@example(table=(["t", "i"], [("),\n(1,'", 1), ("\n", None), ("\r\n", 3)]), target=2, block=3)
@example(table=(["b"], [(bytes(range(256)),), (b"\0",), (b"",), (None,)]), target=7, block=64)
def test_what_is_written_is_read(
    dialect: Dialect, table: tuple[list[str], list[tuple]], target: int, block: int
) -> None:
    names, rows = table
    expected = [tuple(in_feed(*pair) for pair in zip(names, row, strict=True)) for row in rows]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "BLOCK_BYTES", block)
        file = {f"d.t.000000000.{dialect.format}": written(dialect, names, rows)}
        dump = dump_of(Path(folder), names, file, dialect.options)
        assert read_all(dump, target) == expected


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(
    table=tables(), cut=st.integers(0, 200), noise=st.binary(max_size=4), block=st.integers(1, 99)
)
def test_damaged_files_are_read_or_refused(
    dialect: Dialect, table: tuple[list[str], list[tuple]], cut: int, noise: bytes, block: int
) -> None:
    names, rows = table
    data = written(dialect, names, rows)
    data = data[:cut] + noise + data[cut + 2 :] or b"x"
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "BLOCK_BYTES", block)
        dump = dump_of(
            Path(folder), names, {f"d.t.000000000.{dialect.format}": data}, dialect.options
        )
        with suppress(DumpError):
            for row in read_all(dump, 50):
                assert len(row) == len(names)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("dialect", [Dialect(), Dialect(format="sql")], ids=["csv", "sql"])
@settings(max_examples=20, deadline=None)
@given(table=tables(), block=st.integers(1, 200))
def test_compressed_files_are_read(
    dialect: Dialect, suffix: str, table: tuple[list[str], list[tuple]], block: int
) -> None:
    names, rows = table
    expected = [tuple(in_feed(*pair) for pair in zip(names, row, strict=True)) for row in rows]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "BLOCK_BYTES", block)
        data = COMPRESSIONS[suffix](written(dialect, names, rows))
        dump = dump_of(
            Path(folder), names, {f"d.t.{dialect.format}{suffix}": data}, dialect.options
        )
        assert read_all(dump, 1) == expected


def parquet_array(name: str, values: list) -> pa.Array:
    """A column in one of the types that Dumpling and TiDB Cloud give it."""
    form = TYPES[name].form
    if name == "i":
        return pa.array(values, pa.int64())
    if name == "u":
        return pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(20, 0))
    if name == "d":
        return pa.array(values, pa.decimal128(20, 5))
    if form in ("float", "double"):
        return pa.array(values, pa.float64())
    if form == "datetime":
        texts = [None if v is None else shown(name, v).decode() for v in values]
        return pa.array(texts, pa.string()).cast(pa.timestamp("us"))
    kind = pa.binary() if form in ("bytes", "bit") else pa.string()
    return pa.array([None if v is None else shown(name, v) for v in values], pa.binary()).cast(kind)


@settings(max_examples=80, deadline=None)
@given(table=tables(), target=st.integers(1, 400), groups=st.integers(1, 4))
def test_parquet_is_read(table: tuple[list[str], list[tuple]], target: int, groups: int) -> None:
    names, rows = table
    expected = [tuple(in_feed(*pair) for pair in zip(names, row, strict=True)) for row in rows]
    for place, name in enumerate(names):
        if name == "f":  # a FLOAT too small for the text that the other formats have
            expected = [
                (*row[:place], None if v[place] is None else _float(v[place]), *row[place + 1 :])
                for row, v in zip(expected, rows, strict=True)
            ]
    arrays = [
        parquet_array(name, list(values))
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    out = io.BytesIO()
    pq.write_table(pa.table(arrays, names=names), out, row_group_size=groups)
    with TemporaryDirectory() as folder:
        files = {"d.t.000000000.snappy.parquet": out.getvalue()}
        dump = dump_of(Path(folder), names, files, DumpOptions())
        assert read_all(dump, target) == expected


def _float(value: float) -> str:
    text = shortest_float(repr(value))
    return "-0" if text in ("0", "-0") and math.copysign(1, value) < 0 else text
