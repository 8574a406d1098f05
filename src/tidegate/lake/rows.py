"""Row changes of one table → what its rows are in the end: the last change of every key wins.

Changes of a key are ordered by commit_ts; within a transaction deletes go before updates and these
before inserts, as TiCDC sorts them when it splits an update that changes a key. A row that was sent
again is the same change again. Rows of several shapes (a column was added, the sender sorts) are
read by the names of their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.lake.conversion import fitted
from tidegate.lake.format import OP
from tidegate.lake.names import own
from tidegate.model import Column as SchemaColumn
from tidegate.model import TableSchema
from tidegate.model.types import MOMENTS, REALS
from tidegate.spark.tables import is_marked
from tidegate.spark.types import UTC, from_text, spark_type, to_text

BY_COMMIT = "commit"
"""Changes of a key follow each other by commit_ts."""
BY_ARRIVAL = "arrival"
"""Changes of a key follow each other as they arrived, for feeds that say nothing better."""

PLACE = ("topic", "partition", "offset", "event")
NO_DATE = "0000-00-00"
"""The text in keys of all dates that are none: the lake holds NULL for each of them."""
COUNT = own("count")
"""The column of `whole_rows` that says how often a row is put there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of the values in the rows of one shape."""

    shape: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads the row changes of one table: they come with the columns of `sent`, if that is given.

    What `schema` lacks of them is passed over, what they lack of it is NULL. With `touched` only
    those keys come out of `last_of_each_key` that some change has of which that is true.
    """

    schema: TableSchema
    layouts: Sequence[Layout]
    zone: str = "UTC"
    sent: TableSchema | None = None
    touched: Column | None = field(default=None, compare=False)

    def _sent(self, column: SchemaColumn) -> SchemaColumn | None:
        return column if self.sent is None else self.sent.column(column.name)

    def last_of_each_key(
        self,
        changes: DataFrame,
        key: Sequence[str],
        order: str = BY_COMMIT,
        *,
        moves: bool = True,
        complete: Callable[[DataFrame], DataFrame] | None = None,
    ) -> DataFrame:
        """The columns of the table and OP: each key once, as its last change left it.

        `moves` False says that no update takes a row to another key. Where some shapes have only
        the key, `complete` is given their keys and finds the rows, as `Completion.rows` does.
        """
        stamp = [] if complete is None else ["commit_ts"]
        marks = [] if self.touched is None else [self.touched.alias("touched")]
        names = [f"key{number}" for number in range(len(key))]
        shape, after, before = F.col("shape"), F.col("after"), F.col("before")
        image = F.coalesce(after, before)
        pairs = changes.select(
            *(
                self._key_text(image, shape, of).alias(name)
                for of, name in zip(key, names, strict=True)
            ),
            _place(order, _rank()).alias("place"),
            after.alias("row"),
            shape,
            *stamp,
            *marks,
        )
        if moves:
            was = [self._key_text(before, shape, name) for name in key]
            now = [self._key_text(after, shape, name) for name in key]
            # A key is never NULL: where the old row has none, the message did not carry it.
            moved = reduce(Column.__or__, (old != new for old, new in zip(was, now, strict=True)))
            gone = changes.where((F.col("kind") == "update") & F.coalesce(moved, F.lit(False)))
            pairs = pairs.unionAll(
                gone.select(
                    *(
                        F.coalesce(old, new).alias(name)
                        for old, new, name in zip(was, now, names, strict=True)
                    ),
                    _place(order, F.lit(0)).alias("place"),
                    F.lit(None).cast("array<string>").alias("row"),
                    shape,
                    *stamp,
                    *marks,
                )
            )
        content = F.struct("row", "shape", *stamp)
        some = [F.bool_or("touched").alias("touched") for _ in marks]
        last = pairs.groupBy(*names).agg(F.max_by(content, "place").alias("last"), *some)
        if marks:
            last = last.where("touched")
        row, of_shape = F.col("last.row"), F.col("last.shape")
        texts = dict(zip(key, map(F.col, names), strict=True))
        op = F.when(row.isNull(), "d").otherwise("u").alias(OP)
        if complete is None:
            return last.select(*self._typed(row, of_shape, texts), op)
        lacks = row.isNotNull() & of_shape.isin(self._shapes_of_keys())
        whole = last.where(~lacks).select(*self._typed(row, of_shape, texts), op)
        keys = last.where(lacks).select(*names, F.col("last.commit_ts").alias("commit_ts"))
        return whole.unionAll(self._completed(complete(keys), texts))

    def _shapes_of_keys(self) -> list[int]:
        """The shapes that do not have all columns."""
        every = (self.sent or self.schema).carried_names
        return [each.shape for each in self.layouts if not set(every) <= set(each.names)]

    def _completed(self, found: DataFrame, texts: dict[str, Column]) -> DataFrame:
        """Rows that were asked for: texts in the order of their columns, their times in UTC."""
        places = {
            name: place for place, name in enumerate((self.sent or self.schema).carried_names)
        }
        row = F.col("row")
        typed = []
        for column in self.schema.columns:
            name, sent = column.name, self._sent(column)
            if column.generated == "virtual":
                continue
            if name in texts:
                value = from_text(column, texts[name], self.zone)
            elif sent is None:
                value = F.lit(None).cast(spark_type(column))
            else:
                text = F.get(row, F.lit(places[name]))
                value = fitted(column, replace(sent, zone=None), text, self.zone, UTC)
            typed.append(value.alias(name))
        return found.select(*typed, F.when(row.isNull(), "d").otherwise("u").alias(OP))

    def whole_rows(self, changes: DataFrame) -> DataFrame:
        """Every change as the row it puts or removes: the columns, COUNT 1 or -1, and its place.

        For tables without a key; an update removes one row and puts another. A column that the old
        row does not carry has not changed.
        """
        shape = F.col("shape")
        unchanged = {
            column.name: self._old_text(column.name, shape) for column in self.schema.columns
        }
        sides = [
            changes.where(F.col(side).isNotNull()).select(
                *self._typed(F.col(side), shape, unchanged if side == "before" else {}),
                F.lit(count).alias(COUNT),
                *(F.col(name).alias(own(name)) for name in ("commit_ts", *PLACE)),
            )
            for side, count in (("before", -1), ("after", 1))
        ]
        return sides[0].unionAll(sides[1])

    def _old_text(self, name: str, shape: Column) -> Column:
        """The text of a column in the old row, or in the new one where the old lacks it."""
        lacks: Column = F.lit(False)
        for place, shapes in self._places(name).items():
            is_set = F.coalesce(is_marked(F.col("before_missing"), place), F.lit(False))
            lacks = lacks | (shape.isin(shapes) & is_set)
        old, new = (self._text(F.col(side), shape, name) for side in ("before", "after"))
        return F.when(lacks, new).otherwise(old)

    def by_name(self, side: str) -> Column:
        """The values of one side in the order of the table's columns, whatever the row's shape."""
        names = (self.sent or self.schema).carried_names
        values = [self._text(F.col(side), F.col("shape"), name) for name in names]
        return F.when(F.col(side).isNotNull(), F.array(*values))

    def _typed(self, values: Column, shape: Column, texts: dict[str, Column]) -> list[Column]:
        """Every column that rows carry, in its own type; `texts` are known otherwise."""
        found = []
        for column in self.schema.columns:
            if column.generated != "virtual":
                text = texts.get(column.name, self._text(values, shape, column.name))
                value = fitted(column, self._sent(column), text, self.zone)
                found.append(value.alias(column.name))
        return found

    def _key_text(self, values: Column, shape: Column, name: str) -> Column:
        """The text of a column of the key: the same for all that is the same in the lake."""
        text, column = self._text(values, shape, name), self.schema.column(name)
        if column is not None and column.code in REALS:
            number = from_text(column, text, self.zone) + F.lit(0)  # 0 and -0 are one key
            return to_text(column, number.cast(spark_type(column)), self.zone)
        if column is None or column.code not in MOMENTS:
            return text
        is_none = from_text(column, text, self.zone).isNull() & text.isNotNull()
        return F.when(is_none, NO_DATE).otherwise(text)

    def _text(self, values: Column, shape: Column, name: str) -> Column:
        """The text of a column in an array of values, whatever their shape."""
        shapes = self._places(name)
        if not shapes:
            return F.lit(None).cast("string")
        if len(shapes) == 1 and len(next(iter(shapes.values()))) == len(self.layouts):
            return F.get(values, F.lit(next(iter(shapes))))
        (place, of), *others = shapes.items()
        chain = F.when(shape.isin(of), F.get(values, F.lit(place)))
        for place, of in others:
            chain = chain.when(shape.isin(of), F.get(values, F.lit(place)))
        return chain

    def _places(self, name: str) -> dict[int, list[int]]:
        """At which place which shapes have a column."""
        shapes: dict[int, list[int]] = {}
        for layout in self.layouts:
            if name in layout.names:
                shapes.setdefault(layout.names.index(name), []).append(layout.shape)
        return shapes


def _rank() -> Column:
    kind = F.col("kind")
    return F.when(kind == "delete", 0).when(kind == "update", 1).otherwise(2)


def _place(order: str, rank: Column) -> Column:
    first = [F.col("commit_ts"), rank.alias("rank")] if order == BY_COMMIT else []
    last = [rank.alias("rank")] if order == BY_ARRIVAL else []
    return F.struct(*first, F.col("offset"), F.col("event"), *last)
