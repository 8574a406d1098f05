"""The golden dumps: what the real Dumpling wrote, and the tables that it read at that instant.

`tests/golden-dump/README.md` says how they were made. A truth value is turned here into the string
of the change batch without Tidegate's help, but for the number of an ENUM or SET, which needs the
elements of its type.
"""

import base64
import io
import json
import lzma
import struct
import tarfile
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from tidegate.model import Column, MySQLType, TableSchema, ValueForm
from tidegate.upstream.dump import Dump, DumpOptions, DumpTable, read_split

GOLDEN = Path(__file__).parent.parent / "golden-dump"
SCENARIOS = ("bank", "bank_mid", "ddl", "ddl_mid", "nopk", "types")
OPTIONS = {
    "csv.bigquery": DumpOptions(dialect="bigquery"),
    "csv.noesc": DumpOptions(escape_backslash=False),
}
CUT_OFF = ("bank.sql.killed", "bank.csv.terminated")


@cache
def members(scenario: str) -> dict[str, bytes]:
    """The files of a scenario: `SCEN.VARIANT/FILE` and `SCEN.final.json`."""
    data = lzma.decompress((GOLDEN / f"{scenario}.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: data[entry.offset_data :][: entry.size] for entry in tar}


def variants() -> list[str]:
    """Every complete dump: `types.csv`, `bank.sql.zstd.chunks`, …"""
    folders = {
        name.partition("/")[0] for each in SCENARIOS for name in members(each) if "/" in name
    }
    return sorted(folders - {*CUT_OFF})


def options_of(variant: str) -> DumpOptions:
    """The options that must be given for a variant; the others are detected."""
    return OPTIONS.get(variant.partition(".")[2], DumpOptions())


def unpacked(variant: str, folder: Path) -> str:
    """The dump in a folder, as Dumpling left it."""
    scenario = variant.partition(".")[0]
    for name, data in members(scenario).items():
        if name.startswith(f"{variant}/"):
            (folder / name.partition("/")[2]).write_bytes(data)
    return str(folder)


def truth(scenario: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The tables of a scenario at the dump's instant, by name."""
    document = json.loads(members(scenario)[f"{scenario}.final.json"])
    return {(table["schema"], table["table"]): table for table in document["tables"]}


def rows_of(dump: Dump, table: DumpTable, **how: Any) -> list[tuple[str | None, ...]]:
    """All rows of a table, split by split."""
    names = list(how.pop("names", table.schema.carried_names))
    found: list[tuple[str | None, ...]] = []
    for split in dump.splits(table, **how):
        for batch in read_split(split):
            assert batch.schema.names == names
            batch.validate(full=True)
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def expected(schema: TableSchema, table: dict[str, Any]) -> list[tuple[str | None, ...]]:
    """The truth's rows in the change batch's strings, without the columns that dumps leave out."""
    names = [column["n"] for column in table["columns"]]
    kept = [
        (names.index(column.name), column, table["columns"][names.index(column.name)]["hex"])
        for column in schema.columns
        if column.generated is None
    ]
    return [
        tuple(_string(column, row[place], is_hex=is_hex) for place, column, is_hex in kept)
        for row in table["rows"]
    ]


def _string(column: Column, value: str | None, *, is_hex: bool) -> str | None:
    if value is None:
        return None
    if column.code == MySQLType.BIT:
        return str(int(value, 16))
    if is_hex:
        return base64.b64encode(bytes.fromhex(value)).decode()
    if column.code == MySQLType.ENUM:
        return str(column.elements.index(value) + 1 if value else 0)
    if column.code == MySQLType.SET:
        return str(sum(1 << column.elements.index(each) for each in value.split(",") if value))
    if column.value_form in (ValueForm.YEAR, ValueForm.INTEGER, ValueForm.UNSIGNED):
        return str(int(value))
    if column.value_form == ValueForm.FLOAT:
        return shortest_float(value)
    if column.value_form == ValueForm.DOUBLE:
        return format(Decimal(repr(float(value))).normalize(), "f")
    return value


def shortest_float(text: str) -> str:
    """The fewest digits that give the same FLOAT, without an exponent."""
    exact = struct.unpack("f", struct.pack("f", float(text)))[0]
    for digits in range(1, 10):
        short = f"{exact:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(short)))[0] == exact:
            return format(Decimal(short).normalize(), "f")
    raise AssertionError(text)
