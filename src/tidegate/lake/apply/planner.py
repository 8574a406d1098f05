"""Plans how the lake's tables move from one instant to a later one: steps, in order, no I/O.

Rows of a table are applied in one step up to the next statement that touches it. Steps on different
tables may run at once; a step waits for all earlier ones that name the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidegate.lake.apply.plan.statement_planning import StatementPlanning
from tidegate.lake.apply.plan.steps import Create, Drop, PastEffect, PastKind, Statement, Step
from tidegate.lake.apply.plan.tables import Status, Table, Tables
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.routes import Routes
from tidegate.model import TableSchema
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.tables import Name, TableBook

OLDER_ROWS = (
    "Rows from before {query} arrived after it, and the feed has no watermarks that would tell "
    "what they mean now. Mirror the feed again, into another lake."
)
_SCHEMA_CHANGES = (
    ChangeKind.DROPPED,
    ChangeKind.RENAMED,
    ChangeKind.TRUNCATED,
    ChangeKind.PRUNED,
    ChangeKind.ALTERED,
    ChangeKind.UNMIRRORED,
)


class Planner(StatementPlanning):
    """Turns statements and row groups into steps, and carries names and schemas through them."""

    def loaded(self, schemas: Iterable[TableSchema]) -> list[Create]:
        """The tables that a load fills; one that the lake cannot hold is stopped and not made."""
        for schema in schemas:
            name = Name(schema.database, schema.table)
            if self._routes.wants(name):
                self._book.put(schema)
                self._create(name, schema, self._target)
        return [step for step in self._steps if isinstance(step, Create)]

    def refuse(self, name: Name, reason: str) -> None:
        """Notes a table that exists upstream and cannot be mirrored."""
        schema = TableSchema(database=name.database, table=name.table)
        table = self._tables[name.folded] = Table(name, schema)
        self._stop(table, reason, self._target)

    def plan(
        self, statements: Sequence[Statement | PastEffect], groups: Iterable[Group]
    ) -> list[Step]:
        """Statement n cuts segment n from segment n + 1.

        A past effect does nothing to tables: it says what becomes of the rows from before it.
        """
        statements = list(statements)
        by_segment: dict[int, list[Group]] = {}
        for group in groups:
            by_segment.setdefault(group.segment, []).append(group)
            name = Name(group.database, group.table)
            self._segments.setdefault(name, set()).add(group.segment)
        for segment in range(len(statements) + 1):
            for group in by_segment.get(segment, ()):
                name = Name(group.database, group.table)
                if self._routes.wants(name):
                    self._pending.setdefault(name.folded, []).append(group)
            if segment < len(statements):
                self._arrange(statements, segment)
                each = statements[segment]
                if isinstance(each, PastEffect):
                    self._pass(each, statements[segment + 1 :])
                else:
                    self._statement(each)
        for folded in sorted(self._pending):
            self._flush(folded, self._target)
        return self._lasting()

    def _lasting(self) -> list[Step]:
        """The steps without those of tables that come and go within them: nobody sees these.

        In a catalog that forgets what was dropped, they could not be repeated after a crash.
        """
        made, gone = (
            {id(step.table) for step in self._steps if isinstance(step, kind)}
            for kind in (Create, Drop)
        )
        return [step for step in self._steps if id(step.table) not in made & gone]

    def _arrange(self, statements: list[Statement | PastEffect], first: int) -> None:
        """Orders the statements of one commit_ts, from `first` on, by what they depend on."""
        ts = statements[first].commit_ts
        if first and statements[first - 1].commit_ts == ts:
            return
        run = []
        for each in statements[first:]:
            if isinstance(each, PastEffect) or each.commit_ts != ts:
                break
            run.append(each)
        if len(run) < 2:
            return
        positions = [each.position for each in run]
        there = [*self._there(), *(Name(*folded) for folded in self._pending)]
        arranged = self._book.arrange(run, lambda each: each.id, there, lambda each: each.topic)
        statements[first : first + len(run)] = [
            replace(each, position=position)
            for each, position in zip(arranged, positions, strict=True)
        ]

    def _pass(self, past: PastEffect, later: Sequence[Statement | PastEffect]) -> None:
        """Sends rows where a statement that was carried out earlier has sent their table."""
        groups = self._pending.pop(past.name.folded, [])
        if not groups or past.kind is PastKind.EMPTIED:
            return
        if past.new_name is not None:
            self._pending.setdefault(past.new_name.folded, []).extend(groups)
            return
        table = self._heir(past.name, later)
        if table is not None and table.status is Status.MIRRORED:
            self._stop(table, OLDER_ROWS.format(query=past.what), self._target)

    def _heir(self, name: Name, later: Sequence[Statement | PastEffect]) -> Table | None:
        """The table that had a name before later effects; None if it was emptied or dropped."""
        for each in later:
            if isinstance(each, PastEffect) and each.name.folded == name.folded:
                if each.kind is PastKind.EMPTIED:
                    return None
                name = each.new_name or name
        return self._tables.get(name.folded)


def first_schema_change(
    statements: Iterable[Statement], tables: Tables, book: TableBook, routes: Routes
) -> tuple[Statement, Name] | None:
    """The first statement that changes a table that is mirrored then, and the table."""
    book = book.copy()
    mirrored = {name for name, table in tables.items() if table.status is Status.MIRRORED}
    for statement in statements:
        told = statement.id
        for effect in book.run(
            told.query, told.database, told.table or None, schemas=statement.schemas
        ):
            if effect.kind in _SCHEMA_CHANGES and effect.name.folded in mirrored:
                return statement, effect.name
            if effect.kind is ChangeKind.CREATED and routes.wants(effect.name):
                mirrored.add(effect.name.folded)
    return None
