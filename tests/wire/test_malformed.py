"""Bad input, protocol by protocol: an error row with a reason, never a crash, a hang or a guess.

The bound on memory that these tests hold the decoders to: decoding one message of n bytes takes no
more than 64 MiB + 64 n, whatever lengths the message claims.
"""

import json
import random
import resource
import time
from base64 import b64encode

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutate import mutate
from fuzz.run import check
from tests.support import corpus
from tidegate.model import EventFlag
from tidegate.wire import decode_batch, encode_batch
from tidegate.wire.kernel.compression import MAX_EXPANDED_BYTES, compress

FILES = {
    "open-protocol": "types.open.b1",
    "canal-json": "types.canal.ext",
    "simple json": "types.simple.json",
    "simple avro": "types.simple.avro",
    "craft": "types.craft.b16",
    "cdc": "types.open.b1",
}


def seeds(name: str) -> list[tuple[bytes | None, bytes]]:
    """Good messages of every kind, the small ones first."""
    messages = [(message.key, message.value or b"") for message in corpus.messages(FILES[name])]
    if name == "cdc":
        batch = decode_batch("open-protocol", [k for k, _ in messages], [v for _, v in messages])
        messages = [
            (None, value)
            for value in encode_batch("cdc", batch, profile="operations")["value"].to_pylist()
        ]
    return sorted(messages, key=lambda message: len(message[1]))


def some(name: str) -> list[tuple[bytes | None, bytes]]:
    """A few of them, spread over the sizes."""
    found = [message for message in seeds(name) if len(message[1]) < 1500]
    return found[:: max(1, len(found) // 6)]


def decode(name: str, key: bytes | None, value: bytes | None) -> list[dict]:
    batch = decode_batch(
        name.split()[0], pa.array([key], pa.binary()), pa.array([value], pa.binary())
    )
    batch.validate(full=True)
    return [row for row in batch.to_pylist() if row["kind"] != "schema" or row["shape"] is None]


def error_code(name: str, key: bytes | None, value: bytes | None) -> str | None:
    rows = decode(name, key, value)
    return rows[0]["error"]["code"] if rows and rows[0]["kind"] == "error" else None


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_an_error(name):
    for key, value in some(name):
        cut = [(key, value[:length]) for length in range(1, len(value))]
        batch = decode_batch(
            name.split()[0],
            pa.array([key for key, _ in cut], pa.binary()),
            pa.array([value for _, value in cut], pa.binary()),
            offsets=pa.array(range(1, len(value)), pa.int64()),
        )
        good = [
            offset
            for offset, kind in zip(
                batch["offset"].to_pylist(), batch["kind"].to_pylist(), strict=True
            )
            if kind not in ("error", "schema")
        ]
        assert good == []
        assert all(
            raw == value[:offset]
            for offset, kind, raw in zip(
                batch["offset"].to_pylist(),
                batch["kind"].to_pylist(),
                batch["raw_value"].to_pylist(),
                strict=True,
            )
            if kind == "error"
        )


@pytest.mark.parametrize("name", FILES)
def test_every_single_bit_flip_leaves_a_valid_batch(name):
    for key, value in some(name)[:3]:
        flipped = []
        for bit in range(len(value) * 8):
            broken = bytearray(value)
            broken[bit >> 3] ^= 1 << (bit & 7)
            flipped.append((key, bytes(broken)))
        check(name.split()[0], flipped, set())


@pytest.mark.parametrize("name", ["cdc"])
def test_no_single_bit_flip_passes_a_checksum(name):
    """Behind the header everything is under the CRC."""
    key, value = some(name)[1]
    for bit in range(14 * 8, len(value) * 8):
        broken = bytearray(value)
        broken[bit >> 3] ^= 1 << (bit & 7)
        assert error_code(name, key, bytes(broken)) is not None


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_mutated_messages_do_not_harm_their_neighbours(name, seed):
    chance = random.Random(seed)
    originals = some(name)
    messages = []
    good = set()
    for index in range(40):
        key, value = chance.choice(originals)
        if index % 4 == 0:
            good.add(index)
        elif key is not None and chance.random() < 0.3:
            key = mutate(key, chance)
        else:
            value = mutate(value, chance)
        messages.append((key, value))
    check(name.split()[0], messages, good)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=100, deadline=None)
@given(key=st.none() | st.binary(max_size=60), value=st.none() | st.binary(max_size=200))
def test_random_bytes_are_an_error_or_nothing(name, key, value):
    for row in decode(name, key, value):
        assert row["kind"] == "error"
        assert row["error"]["reason"]


@pytest.mark.parametrize("name", ["canal-json", "simple json"])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_ten_thousand_deep_is_refused(name, opening):
    key, value = some(name)[0]
    deep = value[:-1] + b',"more":' + opening * 10_000
    assert error_code(name, key, deep) == "depth"


def test_nesting_in_an_open_protocol_event_is_refused():
    key, value = some("open-protocol")[-1]
    event = value[8:-1] + b',"more":' + b"[" * 10_000
    assert error_code("open-protocol", key, len(event).to_bytes(8, "big") + event) == "depth"


@pytest.mark.parametrize(
    "length", [2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
)
@pytest.mark.parametrize("part", ["key", "value"])
def test_lengths_beyond_an_open_protocol_message(part, length):
    key, value = some("open-protocol")[0]
    size = length.to_bytes(8, "big")
    if part == "key":
        assert error_code("open-protocol", key[:8] + size + key[16:], value) == "length"
    else:
        assert error_code("open-protocol", key, size + value[8:]) == "length"


def varint(number: int) -> bytes:
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


@pytest.mark.parametrize("length", [2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["craft", "simple avro", "cdc"])
def test_huge_varints_anywhere_take_no_memory(name, length):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    for key, value in some(name)[:3]:
        broken = [
            (key, value[:position] + varint(length) + value[position + 1 :])
            for position in range(len(value))
        ]
        check(name.split()[0], broken, set())
    assert time.monotonic() - started < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3"]
)
@pytest.mark.parametrize("name", ["canal-json", "simple json", "open-protocol"])
def test_invalid_utf8_in_a_name_is_refused(name, bad):
    key, value = next(message for message in seeds(name) if b'"id"' in message[1])
    broken = value.replace(b'"id"', b'"i' + bad + b'"', 1)
    if name == "open-protocol":
        broken = (len(broken) - 8).to_bytes(8, "big") + broken[8:]
    assert error_code(name, key, broken) == "utf8"


@pytest.mark.parametrize(
    "name, part, position, code",
    [
        ("open-protocol", "key", 7, "version"),
        ("craft", "value", 0, "version"),
        ("cdc", "value", 0, "magic"),
        ("cdc", "value", 4, "version"),
        ("cdc", "value", -1, "checksum"),
        ("simple avro", "value", 0, "union"),
        ("simple avro", "value", 1, "union"),
        ("simple avro", "value", 2, "union"),
    ],
)
def test_marks_and_versions_are_checked(name, part, position, code):
    key, value = some(name)[1]
    broken = bytearray(key if part == "key" else value)
    broken[position] ^= 0x54
    found = error_code(
        name, bytes(broken) if part == "key" else key, value if part == "key" else bytes(broken)
    )
    assert found == code


@pytest.mark.parametrize("protocol", ["canal-json", "simple", "open-protocol"])
@pytest.mark.parametrize("algorithm", ["snappy", "lz4"])
def test_decompression_bombs_are_refused(protocol, algorithm):
    bomb = compress(algorithm, bytes(MAX_EXPANDED_BYTES + 1))
    key = None
    if protocol == "open-protocol":
        key = corpus.messages("types.open.b1")[0].key
        bomb = len(bomb).to_bytes(8, "big") + bomb
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (row,) = decode_batch(protocol, [key], [bomb], compression=algorithm).to_pylist()
    assert row["error"]["code"] == "compression"
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3 * MAX_EXPANDED_BYTES // 1024
    )


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\xff\xff",
        b"",
        b"\x00",
        b"\x05abc",
        b"\x04\x22\x4d\x18",
    ],
)
@pytest.mark.parametrize("algorithm", ["snappy", "lz4"])
def test_damaged_compression_is_an_error(algorithm, value):
    (row,) = decode_batch("canal-json", None, [value], compression=algorithm).to_pylist()
    assert row["kind"] == "error"
    assert row["raw_value"] == value


@pytest.mark.parametrize(
    "location",
    [
        "../../etc/passwd",
        "file:///tmp/..",
        "s3://bucket/a/",
        "",
        "/",
        "..",
        "name\x00.json",
        "a/.hidden",
    ],
)
def test_claim_check_locations_cannot_leave_their_folder(location, tmp_path):
    from tidegate.wire import from_folder

    message = next(
        m for m in corpus.messages("large.canal.cc") if b"claimCheckLocation" in (m.value or b"")
    )
    document = json.loads(message.value)
    document["_tidb"]["claimCheckLocation"] = location
    (row,) = decode_batch(
        "canal-json", None, [json.dumps(document).encode()], claim_check=from_folder(tmp_path)
    ).to_pylist()
    assert row["error"]["code"] == "claim-check"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"key":null}',
        b'{"key":1,"value":2}',
        b'{"key":null,"value":"%%%"}',
        b'{"key":' + b"[" * 9999,
    ]
    + [b'{"key":null,"value":"' + b64encode(b"not canal") + b'"}'],
)
def test_damaged_claim_check_objects_are_errors(content):
    message = next(
        m for m in corpus.messages("large.canal.cc") if b"claimCheckLocation" in (m.value or b"")
    )
    rows = decode_batch(
        "canal-json", None, [message.value], claim_check=lambda _: content
    ).to_pylist()
    assert [row["kind"] for row in rows] == ["error"]


def test_a_claim_check_that_cannot_be_loaded_is_marked_when_nobody_loads_it():
    message = next(
        m for m in corpus.messages("large.canal.cc") if b"claimCheckLocation" in (m.value or b"")
    )
    row = decode_batch("canal-json", None, [message.value]).to_pylist()[-1]
    assert row["flags"] & EventFlag.CLAIM_CHECK
    assert row["claim_check"].endswith(".json")
