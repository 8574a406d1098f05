"""Makes the captures that `tidegate demo` shows: the first messages of a golden scenario.

TiCDC's own bytes for the protocols it writes; `cdc`, which nothing writes any more, by our encoder.
Run from the top of the repository: `python tools/make_demo_captures.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa

from tests.support import corpus
from tidegate.wire import decode_batch, encode_batch, write_capture

FOLDER = Path("src/tidegate/cli/captures")
FILES = {
    "open-protocol": "ddl.open.b1",
    "canal-json": "ddl.canal.ext",
    "simple-json": "ddl.simple.json",
    "simple-avro": "ddl.simple.avro",
    "craft": "ddl.craft.b16",
}
LAST = "ALTER TABLE `t1` DROP COLUMN"


def head(name: str) -> list[corpus.Message]:
    """The messages up to the first column that is dropped."""
    messages = corpus.messages(name)
    for index, message in enumerate(messages):
        if LAST.encode() in (message.value or b""):
            return messages[: index + 1]
    raise LookupError(f"{name} drops no column")


def main() -> None:
    """Writes all captures."""
    FOLDER.mkdir(exist_ok=True)
    for protocol, name in FILES.items():
        messages = head(name)
        batch = pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([message.partition for message in messages], pa.int32()),
                "key": pa.array([message.key for message in messages], pa.binary()),
                "value": pa.array([message.value for message in messages], pa.binary()),
            }
        )
        write_capture(FOLDER / f"{protocol}.jsonl", [batch])
    messages = head("ddl.open.b1")
    changes = decode_batch(
        "open-protocol",
        [message.key for message in messages],
        [message.value for message in messages],
    )
    encoded = encode_batch("cdc", changes, profile="operations")
    write_capture(FOLDER / "cdc.jsonl", [encoded.select(["key", "value"])])


if __name__ == "__main__":
    main()
