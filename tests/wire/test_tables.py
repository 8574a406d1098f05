"""What decoders remember of tables: bounded, and without a cliff where there are more of them."""

import pyarrow as pa
import pytest

from tests.support import corpus
from tidegate.wire import decode_batch, encode_batch
from tidegate.wire.canal.decode import CanalDecoder
from tidegate.wire.cdc.decode import CdcDecoder
from tidegate.wire.codec import decoder as codec
from tidegate.wire.craft.decode import CraftDecoder
from tidegate.wire.open.decode import OpenDecoder
from tidegate.wire.simple.avro.decode import SimpleAvroDecoder
from tidegate.wire.simple.json.decode import SimpleJsonDecoder

MOST_TABLES = 256

CASES = {
    "open-protocol": (OpenDecoder, "open-protocol", "bank.open.b1"),
    "canal-json": (CanalDecoder, "canal-json", "bank.canal.ext"),
    "simple json": (SimpleJsonDecoder, "simple", "bank.simple.json"),
    "simple avro": (SimpleAvroDecoder, "simple", "bank.simple.avro"),
    "craft": (CraftDecoder, "craft", "bank.craft.b1"),
    "cdc": (CdcDecoder, "cdc", "bank.canal.ext"),
}


def row_message(protocol: str, file: str) -> tuple[bytes | None, bytes, str]:
    """Key and value of a message with one row, and its table."""
    for message in corpus.messages(file):
        source = "canal-json" if ".canal." in file else protocol
        batch = decode_batch(source, [message.key], [message.value])
        if batch["kind"].to_pylist()[-1] == "insert":
            break
    if protocol != source:
        message = message._replace(
            key=None, value=encode_batch(protocol, batch)["value"][0].as_py()
        )
    return message.key, message.value, batch["table"].to_pylist()[-1]


def renamed(data: bytes | None, table: str, number: int) -> bytes | None:
    """The bytes with another table, whose name is as long."""
    name = f"{number:0{len(table)}d}"
    return None if data is None else data.replace(table.encode(), name.encode())


def with_checksum(protocol: str, value: bytes) -> bytes:
    from tidegate.wire.kernel.text import crc32c

    if protocol != "cdc":
        return value
    return value[:-4] + crc32c(value[18:-4]).to_bytes(4, "big")


def messages(protocol: str, file: str, count: int) -> list[tuple[bytes | None, bytes]]:
    key, value, table = row_message(protocol, file)
    return [
        (renamed(key, table, i), with_checksum(protocol, renamed(value, table, i) or b""))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tables", [3, MOST_TABLES + 1, MOST_TABLES + 50])
def test_a_decoder_forgets_one_table_at_a_time(name: str, tables: int) -> None:
    decoder_of, protocol, file = CASES[name]
    decoder = decoder_of()
    rounds = messages(protocol, file, tables) * 3
    batch = codec.decode(
        decoder,
        None if rounds[0][0] is None else pa.array([key for key, _ in rounds], pa.binary()),
        pa.array([value for _, value in rounds], pa.binary()),
    )
    assert decoder.remembered == min(tables, MOST_TABLES)
    rows = [row for row in batch.to_pylist() if row["kind"] != "schema"]
    alone = [
        row
        for key, value in rounds[:tables]
        for row in decode_batch(protocol, None if key is None else [key], [value]).to_pylist()
        if row["kind"] != "schema"
    ]
    assert len(rows) == 3 * tables
    for place, row in enumerate(rows):
        assert row | {"message": 0} == alone[place % tables] | {"message": 0}
        assert row["kind"] == "insert"


def test_the_compiled_type_codes_and_flags_are_those_of_the_model() -> None:
    import re
    from pathlib import Path

    import tidegate.wire.kernel
    from tidegate.model import Flag, MySQLType

    text = (Path(tidegate.wire.kernel.__file__).parent / "values.pxd").read_text(encoding="utf-8")
    codes = {name: int(code) for name, code in re.findall(r"^    CODE_(\w+) = (\d+)$", text, re.M)}
    flags = {name: int(bit) for name, bit in re.findall(r"^    COLUMN_(\w+) = (\d+)$", text, re.M)}
    assert codes == {member.name: member.value for member in MySQLType}
    assert flags
    assert {name: Flag[name].value for name in flags} == flags
