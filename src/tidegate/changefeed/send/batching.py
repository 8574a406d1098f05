"""Which rows share a message, where a protocol puts several into one.

TiCDC joins rows of one table that its dispatcher gives the same key and that it finds in its queue
together. Encoders join neighbours of one table up to a number of rows; so rows are arranged such
that exactly that many neighbours belong together, and each such arrangement is encoded in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.send.row_groups import modulo

Encode = Callable[[pa.Int64Array, int], pa.RecordBatch]
"""Encodes the rows at these places, so many a message; gives messages (MESSAGE_SCHEMA)."""

_WHOLE_GROUP = 256  # rows that belong together and are worth a call of their own


def joined(
    encode: Encode, belongs: Mapping[str, pa.Array], most: int, *, once: bool
) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
    """Messages of rows that agree in all of `belongs`, with the place of each one's first row.

    `once`: no row may be encoded twice, for that has an effect (claim checks).
    """
    count = len(next(iter(belongs.values())))
    table = pa.table({**belongs, "place": pa.array(range(count), pa.int64())})
    groups = table.group_by(list(belongs), use_threads=False).aggregate([("place", "list")])
    lists = groups["place_list"].combine_chunks()
    sizes = pc.cast(lists.value_lengths(), pa.int64())
    alone = pc.greater_equal(sizes, _WHOLE_GROUP)
    if once:
        alone = pc.greater(sizes, 1)
    for rows in lists.filter(alone):
        yield _placed(encode(rows.values, most), rows.values)
    yield from _arranged(encode, lists.filter(pc.invert(alone)), most)


def _arranged(
    encode: Encode, lists: pa.ListArray, most: int
) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
    """Groups cut into full messages and a rest; those of one size are encoded together."""
    places = lists.flatten()
    if len(places) == 0:
        return
    parents = pc.cast(pc.list_parent_indices(lists), pa.int64())
    lengths = pc.cast(lists.value_lengths(), pa.int64())
    ends = pc.cumulative_sum(lengths)
    numbers = pa.array(range(len(places)), pa.int64())
    rank = pc.subtract(numbers, pc.subtract(ends, lengths).take(parents))
    rest = modulo(lengths, most)
    is_full = pc.less(rank, pc.subtract(lengths, rest).take(parents))
    sizes = pc.if_else(is_full, most, rest.take(parents))
    for size in sorted(pc.unique(sizes).to_pylist()):
        chosen = places.filter(pc.equal(sizes, size))
        messages = encode(chosen, size)
        if messages.num_rows * size == len(chosen):
            yield _placed(messages, chosen)
            continue
        # Some message was full before: then its neighbours would take in others' rows.
        for start in range(0, len(chosen), size):
            together = chosen.slice(start, size)
            yield _placed(encode(together, size), together)


def _placed(
    messages: pa.RecordBatch, places: pa.Int64Array
) -> tuple[pa.RecordBatch, pa.Int64Array]:
    return messages, places.take(messages["row"])
