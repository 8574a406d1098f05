"""Feeds mutated messages to every decoder and checks what must always hold.

No crash (run it on the sanitizer's build: `make fuzz`), no hang, a valid Arrow batch, unharmed
neighbours, and nothing lost: each message is at least one row, or an error row with a reason. A
message that is decoded alone gives the same rows as in the batch, where earlier messages predict it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa
import pyarrow.compute as pc

from fuzz.mutate import mutate
from tests.support import corpus
from tidegate.wire import decode_batch

SOURCES = {
    "open-protocol": ("types.open.b16", "ddl.open.b1", "new/types.open.updcols", "new/x_nulls.open.updcols"),
    "canal-json": ("types.canal.ext", "ddl.canal.compat.ext", "types.canal.updcols"),
    "simple json": ("types.simple.json", "ddl.simple.json", "types_ck.simple.json.ck"),
    "simple avro": ("types.simple.avro", "ddl.simple.avro", "types_ck.simple.avro.ck"),
    "craft": ("types.craft.b16", "types.craft.mix", "ddl.craft.b1"),
    "cdc": (),
}  # fmt: skip
BATCH = 500
SLOW_SECONDS = 5.0


def seeds(name: str) -> list[tuple[bytes | None, bytes | None]]:
    """Good messages to break."""
    if name == "cdc":
        return _cdc_seeds()
    return [
        (message.key, message.value)
        for file in SOURCES[name]
        for message in corpus.messages(file)
        if len(message.value or b"") < 20_000
    ]


def _cdc_seeds() -> list[tuple[bytes | None, bytes | None]]:
    """The corpus has no cdc messages: ours, from the rows of another protocol."""
    from tidegate.wire import encode_batch

    messages = corpus.messages("types.open.b1")
    batch = decode_batch("open-protocol", [m.key for m in messages], [m.value for m in messages])
    encoded = encode_batch("cdc", batch, profile="operations")
    return [(None, value) for value in encoded["value"].to_pylist()]


class Finding(AssertionError):
    """Something that must always hold did not."""


def check(protocol: str, messages: list[tuple[bytes | None, bytes | None]], good: set[int]) -> int:
    """Decodes a batch in which the messages at `good` are untouched; gives the number of errors."""
    started = time.process_time()  # not the clock's: the machine may be busy with other work
    batch = decode_batch(
        protocol,
        pa.array([key for key, _ in messages], pa.binary()),
        pa.array([value for _, value in messages], pa.binary()),
        offsets=pa.array(range(len(messages)), pa.int64()),
    )
    took = time.process_time() - started
    if took > SLOW_SECONDS:
        raise Finding(f"{len(messages)} messages took {took:.1f} s")
    batch.validate(full=True)
    errors = 0
    seen = set()
    for offset, kind, error in zip(
        batch["offset"].to_pylist(),
        batch["kind"].to_pylist(),
        batch["error"].to_pylist(),
        strict=True,
    ):
        seen.add(offset)
        if kind == "error":
            errors += 1
            if offset in good:
                raise Finding(f"an untouched message became an error: {error}")
            if not error["code"] or not error["reason"] or error["position"] < 0:
                raise Finding(f"an error without a reason: {error}")
    # Only in the open protocol can a message hold no event: its key ends behind the version.
    lost = {
        offset
        for offset, (key, _) in enumerate(messages)
        if offset not in seen and (protocol != "open-protocol" or (key or b"")[8:])
    }
    if lost:
        raise Finding(f"nothing became of messages {sorted(lost)[:5]}")
    compare_alone(protocol, messages, batch)
    return errors


def events_of(batch: pa.RecordBatch) -> pa.Table:
    """The rows that stand for events; the others are shapes."""
    return pa.Table.from_batches([batch]).filter(pc.greater_equal(batch["event"], 0))


def compare_alone(
    protocol: str, messages: list[tuple[bytes | None, bytes | None]], batch: pa.RecordBatch
) -> None:
    """Every message gives the same rows alone as in the batch, errors included."""
    alone = [
        events_of(
            decode_batch(
                protocol,
                pa.array([key], pa.binary()),
                pa.array([value], pa.binary()),
                offsets=pa.array([offset], pa.int64()),
            )
        )
        for offset, (key, value) in enumerate(messages)
    ]
    together = events_of(batch)
    if pa.concat_tables(alone).equals(together):
        return
    for offset, rows in enumerate(alone):
        same = together.filter(pc.equal(together["offset"], offset))
        if not rows.combine_chunks().equals(same.combine_chunks()):
            raise Finding(
                f"message {offset} alone gives {rows.to_pylist()}, in the batch {same.to_pylist()}"
            )


def fuzz(name: str, count: int, seconds: float, seed: int) -> tuple[int, int]:
    """Mutates and checks until count or time is reached; gives messages and errors."""
    chance = random.Random(f"{name} {seed}")
    protocol = name.split()[0]
    originals = seeds(name)
    done = errors = 0
    deadline = time.monotonic() + seconds
    while done < count and time.monotonic() < deadline:
        messages = []
        good = set()
        for index in range(BATCH):
            key, value = chance.choice(originals)
            if chance.random() < 0.1:
                good.add(index)
            elif key is not None and chance.random() < 0.3:
                key = mutate(key, chance)
            else:
                value = mutate(value, chance)
            messages.append((key, value))
        try:
            errors += check(protocol, messages, good)
        except Exception:
            path = Path(f"fuzz-finding-{name.replace(' ', '-')}-{done}.txt")
            path.write_text("\n".join(f"{key!r}\t{value!r}" for key, value in messages))
            print(f"{name}: a finding; the batch is in {path}", file=sys.stderr)
            raise
        done += BATCH
    return done, errors


def main() -> None:
    """Fuzzes every protocol."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="time for all protocols together")
    parser.add_argument("--count", type=int, default=10**9, help="messages a protocol, at most")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--protocol", choices=list(SOURCES), action="append")
    arguments = parser.parse_args()
    names = arguments.protocol or list(SOURCES)
    print(f"fuzz: seed {arguments.seed}", flush=True)
    for name in names:
        seconds = arguments.minutes * 60 / len(names)
        done, errors = fuzz(name, arguments.count, seconds, arguments.seed)
        print(f"fuzz: {name}: {done:,} messages, {errors:,} errors, no finding", flush=True)


if __name__ == "__main__":
    main()
