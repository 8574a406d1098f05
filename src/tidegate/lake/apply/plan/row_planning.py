"""Plans rows: which step reads them, by which columns, and whether they fit their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tidegate.lake.apply.plan.places import TablePlanning
from tidegate.lake.apply.plan.steps import Rows
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.apply.rows import Layout
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.formats.base import Position
from tidegate.model import EventFlag
from tidegate.sql.tables import Name

UPSTREAM_NEEDED = (
    "Messages that were too large carry only the key of a row: name the database that the feed "
    "comes from with the setting upstream (--upstream mysql://user:password@host:port/), and "
    "mirror the table anew."
)
CLAIM_CHECK_NEEDED = (
    "Messages that were too large are in claim-check storage: name it with the setting "
    "claim-check, and mirror the table anew."
)
NOT_FROM_START = (
    "The feed does not have its CREATE TABLE, so rows from before the feed are missing."
)
NO_WHOLE_ROW = "Its columns are not known: the feed has neither its CREATE nor a whole row."
COUNTED_AGAIN = (
    "It has no key, and the feed has no watermarks: a row that TiCDC sends again is counted again."
)


class RowPlanning(TablePlanning):
    """Turns the rows of a table that wait into steps."""

    def _flush(self, folded: tuple[str, str], position: Position) -> None:
        groups = self._pending.pop(folded, [])
        if not groups:
            return
        known = self._tables.get(folded)
        table = known or self._unknown(folded, groups)
        if table is None or table.status is Status.STOPPED:
            return
        self._follow_key(table, groups)
        if not self._in_commit_order and not table.sent.handle_key():
            table.diverge(COUNTED_AGAIN, guessed=True)
        problem = self._misfit(table, groups if known else self._since_first_row(groups))
        if problem:
            self._stop(table, problem, position)
            return
        for number, together in enumerate(self._together(groups)):
            # Each has a position of its own: a crash may leave some of them done.
            at = position._replace(mended=position.mended + number)
            name = Name(together[0].database, together[0].table)
            self._steps.append(self._rows(table, name, together, at))

    def _together(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The rows of a table in parts that one step can read: one name, and no gap in time.

        There are several only without watermarks: rows that arrive after a RENAME have the name
        from before it, and in between that name may have been another table's.
        """
        by_name: dict[Name, list[Group]] = {}
        for group in groups:
            by_name.setdefault(Name(group.database, group.table), []).append(group)
        parts = []
        for name, of_name in by_name.items():
            of_name.sort(key=lambda group: group.segment)
            parts.append(of_name[:1])
            for before, group in pairwise(of_name):
                between = range(before.segment + 1, group.segment)
                if self._segments[name].isdisjoint(between):
                    parts[-1].append(group)
                else:
                    parts.append([group])
        return parts

    def _rows(self, table: Table, name: Name, groups: Sequence[Group], position: Position) -> Rows:
        late = any(group.late for group in groups)
        applied = [each for each in self._applied if (each.database, each.table) == name]
        layouts = {
            (group.shape, group.schema_version) for group in (*groups, *(applied if late else ()))
        }
        return Rows(
            table,
            position,
            self._places(table.name),
            name=name,
            schema=table.schema,
            sent=table.sent,
            layouts=tuple(
                sorted(
                    {Layout(shape, self._layouts[shape, of]) for shape, of in layouts},
                    key=lambda layout: layout.shape,
                )
            ),
            segments=(
                min(group.segment for group in groups),
                max(group.segment for group in groups),
            ),
            late=late,
            moves=any(self._may_move(table, group) for group in groups),
            count=sum(group.rows for group in groups),
            incomplete=any(group.partial and self._lacking(table, group) for group in groups),
        )

    def _may_move(self, table: Table, group: Group) -> bool:
        """Whether an update may take a row to another key: seen, or not to be seen on the wire.

        Nothing is seen where the wire's key is not the one that the table is kept by.
        """
        if group.moved or group.kind != "update":
            return group.moved
        return set(self._keyed.get(group.shape, ())) != set(table.sent.handle_key())

    def _since_first_row(self, groups: list[Group]) -> list[Group]:
        """Without deletes from before the first row of a table that is not known yet.

        They may lack columns that the row has, and find nothing to delete.
        """
        if not self._in_commit_order:
            return groups
        first = min((group.first_ts for group in groups if group.kind != "delete"), default=0)
        return [group for group in groups if group.kind != "delete" or group.last_ts >= first]

    def _unknown(self, folded: tuple[str, str], groups: Sequence[Group]) -> Table | None:
        """A table whose CREATE the feed did not bring: its first row says what it is.

        Deletes say nothing: they may have only a key, and there is nothing to delete yet.
        """
        first = min(
            (group for group in groups if group.kind != "delete"),
            key=lambda group: (group.first_ts, bool(group.partial)),
            default=None,
        )
        if first is None:
            return None
        schema = self._schemas[first.shape, first.schema_version]
        name, start = Name(schema.database, schema.table), Position(self._start(groups))
        if name.folded != folded:  # it was renamed, and the rows are from before that
            name = Name(*folded)
            schema = replace(schema, database=name.database, table=name.table)
        if first.partial and schema.column_names == self._names(first):
            table = self._tables[name.folded] = Table(name, schema)
            self._stop(table, NO_WHOLE_ROW, start)
            return table
        self._book.put(schema)
        table = self._create(name, schema, start)
        table.missing = NOT_FROM_START
        return table

    def _follow_key(self, table: Table, groups: Sequence[Group]) -> None:
        """Takes the key from the rows where no statement gives it.

        A table that was first seen in its rows has indexes without names, so that a statement that
        drops one cannot be followed. Rows of Open and Craft flag the columns of the key.
        """
        if not table.missing or table.upstream is not None:
            return
        last = max(
            (group for group in groups if group.kind != "delete" and not group.partial),
            key=lambda group: group.first_ts,
            default=None,
        )
        schema = None if last is None else self._schemas.get((last.shape, last.schema_version))
        if schema is None or any(column.flags is None for column in schema.columns):
            return
        if schema.handle_key() != table.schema.handle_key() and set(schema.carried_names) == set(
            table.schema.carried_names
        ):
            # Rows may list the columns in another order; the table keeps its own.
            sent = {column.name: column for column in schema.columns}
            columns = tuple(sent.get(each.name, each) for each in table.schema.columns)
            table.schema = replace(table.schema, columns=columns, indexes=schema.indexes)
            self._book.put(table.schema)

    def _start(self, groups: Sequence[Group]) -> int:
        # Without watermarks positions count steps, and are before any commit_ts.
        return min(self._target.ts, *(group.first_ts for group in groups)) - 1

    def _misfit(self, table: Table, groups: Sequence[Group]) -> str:
        """Why rows do not fit the table as it is known, or nothing."""
        key, known = table.sent.handle_key(), table.sent.carried_names
        for group in groups:
            more = [name for name in self._names(group) if name not in known]
            if more:
                told = f"Its rows have a column {more[0]!r} that no statement of the feed has made."
                if self._policy.stops:
                    return told
                table.diverge(f"{told} It is left out.")
            less = self._lacking(table, group)
            if not less or (group.partial and key and self._completes):
                continue
            if group.partial & EventFlag.CLAIM_CHECK:
                return CLAIM_CHECK_NEEDED
            if group.partial:
                return UPSTREAM_NEEDED
            told = f"Its rows lack the column {less[0]!r}."
            if self._policy.stops or not key or not set(key).isdisjoint(less):
                return told
            table.diverge(f"{told} It is NULL in them.")
        return ""

    def _names(self, group: Group) -> tuple[str, ...]:
        return self._layouts[group.shape, group.schema_version]

    def _lacking(self, table: Table, group: Group) -> list[str]:
        """The columns that rows do not have and must; those of a delete need no more than a key."""
        key, names = table.sent.handle_key(), self._names(group)
        needed = key if key and group.kind == "delete" else table.sent.carried_names
        return [name for name in needed if name not in names]
