"""Plans statements: what each does to the tables that it is about.

What a statement is to do to a table is for the `policy` to say. Where the mirror has then other
columns than the upstream, both schemas are carried on, and rows are fitted to the mirror's.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.lake.apply.plan.row_planning import RowPlanning
from tidegate.lake.apply.plan.steps import (
    Delete,
    Evolve,
    PastEffect,
    PastKind,
    Rename,
    Statement,
)
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.apply.policy import Fit, by_name, fit
from tidegate.lake.formats.base import Position
from tidegate.model import TableSchema
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Effect, Name

ROWS_BEFORE_RENAME = (
    "Its rows arrived before the RENAME of {other}, which gave it its name. Mirror the feed again, "
    "into another lake."
)
OLDER_KEY = (
    "Its rows arrived before its CREATE TABLE, which says that it has another key. Mirror the feed "
    "again, into another lake."
)
NEWER_ROWS = (
    "Rows from after {query} arrived before it, and the feed has no watermarks that would tell "
    "what it means for them. Mirror the feed again, into another lake."
)
_PAST_KINDS = {
    ChangeKind.DROPPED: PastKind.EMPTIED,
    ChangeKind.TRUNCATED: PastKind.EMPTIED,
    ChangeKind.RENAMED: PastKind.RENAMED,
    ChangeKind.ALTERED: PastKind.CHANGED,
    ChangeKind.PRUNED: PastKind.CHANGED,
}


class StatementPlanning(RowPlanning):
    """Turns statements into steps, after the rows that go before them."""

    def _statement(self, statement: Statement) -> None:
        said = statement.id
        # Rows before it may be all that tells a table's schema, so they go first.
        for folded in self._pending_of(statement):
            self._flush(folded, self._before(statement.position))
        for effect in self._book.run(
            said.query,
            said.database,
            said.table or None,
            self._there(),
            schemas=statement.schemas,
            commit_ts=said.commit_ts,
            zone=self._zone,
            may_come_from=self._topics.origins(statement.topic),
        ):
            for name in filter(None, (effect.name, effect.new_name)):
                self.touched[name] = said.commit_ts
            self._remember(effect, said)
            if self._routes.wants(effect.name):
                if effect.kind in _PAST_KINDS and self._overtaken(effect.name, said.commit_ts):
                    self._stop_overtaken(effect, statement.position)
                else:
                    self._effect(effect, statement.position)
            elif effect.new_name is not None and self._routes.wants(effect.new_name):
                self._come_in(effect, statement.position)

    def _pending_of(self, statement: Statement) -> list[tuple[str, str]]:
        """The tables with rows before a statement that concerns them."""
        if not self._pending:
            return []
        said = statement.id
        there = [*self._there(), *(Name(*folded) for folded in self._pending)]
        names = self._book.names_of(
            said.query, said.database, said.table or None, there, schemas=statement.schemas
        )
        concerned = {name.folded for name in names}
        return sorted(folded for folded in self._pending if folded in concerned)

    def _remember(self, effect: Effect, said: DdlId) -> None:
        kind = _PAST_KINDS.get(effect.kind)
        if kind is not None:
            past = PastEffect(
                said.commit_ts, kind, effect.name, effect.new_name, effect.change.what
            )
            self.past.append(past)

    def _effect(self, effect: Effect, position: Position) -> None:
        folded = effect.name.folded
        self._flush(folded, self._before(position))
        table = self._tables.get(folded)
        if effect.kind is ChangeKind.CREATED:
            self._created(table, effect, position)
        elif table is None:
            self._unknown_changed(effect, position)
        elif effect.kind is ChangeKind.DROPPED:
            self._dropped(table, effect, position)
        elif effect.kind is ChangeKind.RENAMED:
            self._rename(table, effect, position)
        elif effect.kind is ChangeKind.UNMIRRORED:
            self._unmirrorable(table, effect, position)
        elif table.status is Status.MIRRORED:
            self._change(table, effect, position)
        else:
            self._learn(table, effect)

    def _stop_overtaken(self, effect: Effect, position: Position) -> None:
        """Stops the tables of a statement that rows from after it have overtaken.

        A dropped table stays, stopped: the rows were those of the next one with its name.
        """
        reason = NEWER_ROWS.format(query=effect.change.what)
        self._pending.pop(effect.name.folded, None)
        table = self._tables.get(effect.name.folded)
        if table is not None:
            self._stop(table, reason, position)
        if effect.new_name is not None and self._routes.wants(effect.new_name):
            self._clear(effect.new_name, position)
            self._stop(self._unmirrored(effect), reason, position)

    def _unknown_changed(self, effect: Effect, position: Position) -> None:
        """A statement about a table that is not here: its first row will say what it is then."""
        if effect.kind is ChangeKind.UNMIRRORED and not effect.change.lacks_schema:
            self._stop(self._unmirrored(effect), effect.change.reason or "", position)

    def _come_in(self, effect: Effect, position: Position) -> None:
        """A table that was not mirrored gets a name that is: its rows are not here."""
        self._make_room(effect, position)
        self._stop(
            self._unmirrored(effect),
            f"It was {effect.name}, which is not mirrored, so its earlier rows are not here.",
            position,
        )

    def _unmirrored(self, effect: Effect) -> Table:
        """A table that is only known to be there: RECOVER TABLE brings rows no feed carries."""
        name = effect.new_name or effect.name
        schema = effect.change.after or TableSchema(database=name.database, table=name.table)
        table = Table(name, schema)
        self._tables[name.folded] = table
        return table

    # --- tables that come and go ------------------------------------------------------------------

    def _created(self, table: Table | None, effect: Effect, position: Position) -> None:
        after = effect.change.after
        is_stopped = table is not None and table.status is Status.STOPPED
        if is_stopped and not self._in_commit_order:
            return  # what was dropped is not here: rows of this very table arrived before it
        if table is not None and (is_stopped or (table.gone and not self._policy.keeps)):
            self._drop(table, position)
            table = None
        elif table is not None and table.missing:
            table = self._created_again(table, effect, position)
        if after is None:
            return
        if table is None:
            self._book.put(after)
            self._create(effect.name, after, position)
        elif table.gone:
            # The rows that were kept stay: the new table goes on in the old one.
            table.gone = False
            if table.schema.handle_key() != after.handle_key():
                told = f"It was made anew with another key ({effect.change.what})."
                self._stop(table, f"{told} The rows that were kept are in its place.", position)
                return
            changes = by_name(table.schema, after)
            what = effect.change.what
            self._fit(table, fit(self._policy, table.schema, after, changes, what), after, position)

    def _created_again(self, table: Table, effect: Effect, position: Position) -> Table | None:
        """The CREATE of a table whose rows came first; the table that stays, or None.

        In a feed with watermarks the rows are those of an earlier table of that name. Without
        them, another partition may have been behind: then the rows are this table's.
        """
        after = effect.change.after
        if self._in_commit_order or after is None:
            self._drop(table, position)
            return None
        if after.handle_key() != table.schema.handle_key():
            self._stop(table, OLDER_KEY, position)
            return table
        change = replace(effect.change, columns=tuple(by_name(table.schema, after)))
        names = self._places(table.name)
        self._steps.append(Evolve(table, position, names, before=table.schema, change=change))
        table.schema, table.missing = after, ""
        self._book.put(after)  # so that later statements do not begin with what the rows told
        return table

    def _dropped(self, table: Table, effect: Effect, position: Position) -> None:
        """A table that the upstream has no more, or that is renamed to what is not mirrored."""
        if self._policy.keeps:
            table.gone = True
            table.diverge(f"Its rows stay ({effect.change.what}).")
        else:
            self._drop(table, position)

    def _make_room(self, effect: Effect, position: Position) -> None:
        """What was kept of a table that was dropped goes where another table gets its name.

        So does a stopped table: the upstream has no table of that name any more. Without watermarks
        its rows may be those of the table that gets the name.
        """
        kept = self._tables.get((effect.new_name or effect.name).folded)
        if kept is None or kept.name.folded == effect.name.folded:
            return
        if kept.gone or (kept.status is Status.STOPPED and self._in_commit_order):
            self._drop(kept, position)

    def _rename(self, table: Table, effect: Effect, position: Position) -> None:
        assert effect.new_name is not None
        if not self._routes.wants(effect.new_name):
            self._dropped(table, effect, position)
            return
        self._make_room(effect, position)
        obstacle = self._obstacle(effect.new_name, but=table)
        if obstacle:
            if effect.new_name.folded in self._tables:
                obstacle = ROWS_BEFORE_RENAME.format(other=effect.name)
                self._clear(effect.new_name, position)
            self._drop(table, position)
            self._stop(self._unmirrored(effect), obstacle, position)
            return
        del self._tables[table.name.folded]
        names = self._places(table.name, effect.new_name)
        self._steps.append(Rename(table, position, names, new_name=effect.new_name))
        table.name = effect.new_name
        self._learn(table, effect)
        self._tables[table.name.folded] = table

    # --- columns and rows ------------------------------------------------------------------------

    def _change(self, table: Table, effect: Effect, position: Position) -> None:
        change, has_own_columns = effect.change, table.upstream is not None
        for guess in change.guesses:
            table.diverge(guess, guessed=True)
        if effect.kind is ChangeKind.ALTERED and change.after is not None:
            if has_own_columns or self._policy.keeps:
                found = fit(self._policy, table.schema, change.after, change.columns, change.what)
                self._fit(table, found, change.after, position)
                return
            problem = self._unsupported(change.after)
            if problem:
                self._stop(table, problem, position)
                return
            names = self._places(table.name)
            self._steps.append(Evolve(table, position, names, before=table.schema, change=change))
        elif effect.kind in (ChangeKind.TRUNCATED, ChangeKind.PRUNED):
            if self._policy.keeps:
                table.diverge(f"Its rows stay ({change.what}).")
            elif (
                effect.kind is ChangeKind.PRUNED and has_own_columns and not table.sent.handle_key()
            ):
                # Only a key is sure to have the columns that tell a partition's rows.
                self._unmirrorable(table, effect, position)
                return
            else:
                names = self._places(table.name)
                self._steps.append(Delete(table, position, names, condition=change.removed))
                if effect.kind is ChangeKind.TRUNCATED:
                    table.missing = ""  # no row from before the feed is left upstream
        self._learn(table, effect)

    def _fit(self, table: Table, found: Fit, after: TableSchema, position: Position) -> None:
        """Gives a table with columns of its own those that the policy has for it."""
        problem = found.problem or self._unsupported(found.schema)
        if problem:
            self._stop(table, problem, position)
            return
        if found.change is not None:
            names = self._places(table.name)
            step = Evolve(table, position, names, before=table.schema, change=found.change)
            self._steps.append(step)
        table.schema = found.schema
        table.upstream = None if found.schema == after else after
        for reason in found.left_out:
            table.diverge(reason)

    def _unmirrorable(self, table: Table, effect: Effect, position: Position) -> None:
        reason = effect.change.reason or effect.change.what
        if table.status is Status.STOPPED:
            pass  # the first reason stays: this statement may be unclear only because of it
        elif self._policy.stops:
            self._stop(table, reason, position)
        else:
            table.diverge(f"{reason} It is left out.")
            table.gone = False
            if self._book.get(*table.name) is None:  # it was dropped, and is back
                self._book.put(table.sent)
        self._learn(table, effect)

    def _learn(self, table: Table, effect: Effect) -> None:
        after, name = effect.change.after, table.name
        if table.upstream is not None:
            table.schema = replace(table.schema, database=name.database, table=name.table)
        # EXCHANGE PARTITION tells of two tables, and the schema of one.
        if after is None or Name(after.database, after.table).folded != name.folded:
            return
        after = replace(after, database=name.database, table=name.table)
        if table.upstream is None:
            table.schema = after
        else:
            table.upstream = after
