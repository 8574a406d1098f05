"""Changes the rows of Iceberg tables: each change is one commit that carries its position."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.lake.formats.base import OP, POSITION, Position
from tidegate.lake.formats.commits import CommitConflict
from tidegate.lake.formats.iceberg.catalog import IcebergCatalog, sql_literal
from tidegate.lake.formats.iceberg.commits import begin, snapshot_id
from tidegate.model.sql import quoted

_FEW_KEYS = 200
"""Up to so many keys Iceberg looks for each of them in the bounds of files."""
_MERGE_SETTINGS = {
    # The rows of the table that no change can concern are left out before the join.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "1MB",
}


class IcebergRows(IcebergCatalog):
    """The rows of a lake's tables."""

    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        table = self._before(identifier, position)
        if condition is None:
            everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            transaction = begin(self._jvm, table)
            removal = transaction.newDelete().deleteFromRowFilter(everything)
            removal.set(POSITION, str(position)).commit()
            self._commit(transaction)
            self._reached[identifier] = position
            return
        # DELETE removes whole files without looking for what was committed meanwhile.
        statement = f"MERGE INTO {identifier} USING (SELECT 1) ON {condition} "
        with self._committing(self.spark, position) as session:
            self._execute(session, f"{statement} WHEN MATCHED THEN DELETE", table, identifier)
        self._ensure(identifier, position)

    def merge(
        self,
        identifier: str,
        changes: DataFrame | pa.Table,
        key: Sequence[str],
        position: Position,
    ) -> None:
        bounds = None
        own = isinstance(changes, DataFrame) and not changes.is_cached
        if isinstance(changes, pa.Table):
            bounds = _Bounds.of_few(changes, key)
            changes = self.spark.createDataFrame(changes)
        names = [name for name in changes.columns if name != OP]
        table = self._before(identifier, position)
        if self._is_empty(table):
            put = changes.where(F.col(quoted(OP)) == "u").select(*(quoted(name) for name in names))
            self._append(identifier, put, position, table)
            return
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        try:
            if own:
                changes = changes.persist()
            bounds = bounds or _Bounds.of(changes, key)
            if bounds is not None:
                changes.createOrReplaceTempView(view)
                statement = _merge_statement(identifier, view, names, key, bounds)
                with self._committing(changes.sparkSession, position) as session:
                    self._execute(session, statement, table, identifier)
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            if own:
                changes.unpersist()
        self._ensure(identifier, position)

    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        self._append(identifier, rows, position, self._before(identifier, position))

    def _append(self, identifier: str, rows: DataFrame, position: Position, table: Any) -> None:
        """Adds rows to exactly the state of the table that was loaded.

        Iceberg looks for rows that others have added when it overwrites some, not when it appends;
        so this overwrites none.
        """
        self.guard.check()
        writer = rows.writeTo(identifier).option(f"snapshot-property.{POSITION}", str(position))
        writer = writer.option("isolation-level", "serializable")
        writer = writer.option("validate-from-snapshot-id", snapshot_id(table))
        writer.overwrite(F.lit(False))
        self._ensure(identifier, position)

    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        names = [quoted(name) for name in changes.columns if name != OP]
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        op = f"s.{quoted(OP)}"
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        table = self._before(identifier, position)
        changes = changes.persist()
        changes.createOrReplaceTempView(view)
        try:
            with self._committing(changes.sparkSession, position) as session:
                statement = (
                    f"MERGE INTO {identifier} AS t USING {view} AS s ON {op} = 'd' AND {same} "
                    "WHEN MATCHED THEN DELETE "
                    f"WHEN NOT MATCHED AND {op} <> 'd' "
                    f"THEN INSERT ({', '.join(names)}) VALUES ({values})"
                )
                self._execute(session, statement, table, identifier)
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            changes.unpersist()
        self._ensure(identifier, position)

    def _execute(self, session: SparkSession, statement: str, table: Any, identifier: str) -> None:
        """Runs a MERGE on exactly the state of the table that was loaded.

        Its commit fails where others have committed to the same rows since it was planned. A pause
        may come before that, so the table is looked at once more between the two.
        """
        java_session: Any = session._jsparkSession
        sessions: Any = self._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(java_session)
        try:
            spark, state = self._jvm.org.apache.spark.sql, java_session.sessionState()
            mode = spark.execution.CommandExecutionMode.SKIP()
            execution = state.executePlan(state.sqlParser().parsePlan(statement), mode)
            execution.executedPlan()
            now = self._load(identifier)
            if snapshot_id(now) != snapshot_id(table):
                raise CommitConflict(f"{identifier} was changed while a step on it was planned")
            self.guard.check()
            rows = spark.catalyst.encoders.RowEncoder.encoderFor(execution.analyzed().schema())
            spark.classic.Dataset(execution, rows).collect()
        finally:
            sessions.setActiveSession(self.spark._jsparkSession)

    def _is_empty(self, table: Any) -> bool:
        snapshot = table.currentSnapshot()
        return snapshot is None or snapshot.summary().get("total-records") == "0"

    @contextmanager
    def _committing(self, spark: SparkSession, position: Position) -> Iterator[SparkSession]:
        """A session whose commits carry the position: the setting is the whole session's."""
        java_session: Any = spark._jsparkSession
        session = SparkSession(spark.sparkContext, java_session.cloneSession())
        session.conf.set(f"spark.sql.iceberg.snapshot-property.{POSITION}", str(position))
        for name, value in _MERGE_SETTINGS.items():
            session.conf.set(name, value)
        yield session


class _Bounds:
    """What is known of the keys of changes before they are merged: enough to pass over files."""

    def __init__(self, condition: str, equal: str) -> None:
        self.condition = condition
        self.equal = equal

    @classmethod
    def of(cls, changes: DataFrame, columns: Sequence[str]) -> _Bounds | None:
        """The bounds of the key's first column; None where there are no changes."""
        key = columns[0]
        column = F.col(quoted(key))
        complete = F.when(~F.array_contains(_nulls(columns), True), 1)
        found = changes.select(
            F.count(F.lit(1)), F.count(complete), F.min(column), F.max(column)
        ).head()
        assert found is not None
        rows, keys, least, greatest = found
        if rows == 0:
            return None
        if keys < rows:  # a key that did not fit its type is NULL
            return cls("", "<=>")
        if not isinstance(least, int | Decimal | str):
            return cls("", "=")
        if rows <= _FEW_KEYS:
            return cls._one_of(key, [row[0] for row in changes.select(column).distinct().collect()])
        return cls._between(key, least, greatest)

    @classmethod
    def of_few(cls, changes: pa.Table, columns: Sequence[str]) -> _Bounds | None:
        """The same of an Arrow table."""
        if not changes.num_rows:
            return None
        if any(changes[name].null_count for name in columns):
            return cls("", "<=>")
        values = changes[columns[0]].unique().to_pylist()
        if not isinstance(values[0], int | Decimal | str):
            return cls("", "=")
        if len(values) <= _FEW_KEYS:
            return cls._one_of(columns[0], values)
        return cls._between(columns[0], min(values), max(values))

    @classmethod
    def _one_of(cls, key: str, values: Sequence[Any]) -> _Bounds:
        return cls(f" AND t.{quoted(key)} IN ({', '.join(map(sql_literal, values))})", "=")

    @classmethod
    def _between(cls, key: str, least: Any, greatest: Any) -> _Bounds:
        limits = f"{sql_literal(least)} AND {sql_literal(greatest)}"
        return cls(f" AND t.{quoted(key)} BETWEEN {limits}", "=")


def _nulls(columns: Sequence[str]) -> Column:
    return F.array(*(F.col(quoted(name)).isNull() for name in columns))


def _merge_statement(
    identifier: str, view: str, names: Sequence[str], key: Sequence[str], bounds: _Bounds
) -> str:
    columns = [quoted(name) for name in names]
    matched = " AND ".join(f"t.{quoted(k)} {bounds.equal} s.{quoted(k)}" for k in key)
    assigned = ", ".join(f"{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    op = f"s.{quoted(OP)}"
    return (
        f"MERGE INTO {identifier} AS t USING {view} AS s ON {matched}{bounds.condition} "
        f"WHEN MATCHED AND {op} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assigned} "
        f"WHEN NOT MATCHED AND {op} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )
