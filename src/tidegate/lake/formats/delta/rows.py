"""Changes the rows of Delta tables."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.lake.formats.base import OP, Position
from tidegate.lake.formats.delta.commits import DeltaCommits, number_of
from tidegate.lake.formats.delta.log import APPLICATION
from tidegate.model.sql import quoted


class DeltaRows(DeltaCommits):
    """The rows of a lake's tables."""

    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        where = "" if condition is None else f" WHERE {condition}"
        with self._changing(identifier, position) as session:
            session.sql(f"DELETE FROM {identifier}{where}")
        self._ensure(identifier, position)

    def merge(
        self,
        identifier: str,
        changes: DataFrame | pa.Table,
        key: Sequence[str],
        position: Position,
    ) -> None:
        if isinstance(changes, pa.Table):
            changes = self.spark.createDataFrame(changes)
        matched = " AND ".join(f"t.{quoted(k)} <=> s.{quoted(k)}" for k in key)
        columns = [quoted(name) for name in changes.columns if name != OP]
        assigned = ", ".join(f"{column} = s.{column}" for column in columns)
        self._merge(
            identifier,
            changes,
            position,
            f"ON {matched} WHEN MATCHED AND s.{quoted(OP)} = 'd' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {assigned} ",
        )

    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        names = [quoted(name) for name in changes.columns if name != OP]
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        self._merge(
            identifier,
            changes,
            position,
            f"ON s.{quoted(OP)} = 'd' AND {same} WHEN MATCHED THEN DELETE ",
        )

    def _merge(self, identifier: str, changes: DataFrame, position: Position, clauses: str) -> None:
        columns = [quoted(name) for name in changes.columns if name != OP]
        values = ", ".join(f"s.{column}" for column in columns)
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        own = not changes.is_cached
        if own:
            changes = changes.persist()
        changes.createOrReplaceTempView(view)
        try:
            with self._changing(identifier, position, changes.sparkSession) as session:
                session.sql(
                    f"MERGE INTO {identifier} AS t USING {view} AS s {clauses}"
                    f"WHEN NOT MATCHED AND s.{quoted(OP)} <> 'd' "
                    f"THEN INSERT ({', '.join(columns)}) VALUES ({values})"
                )
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            if own:
                changes.unpersist()
        self._ensure(identifier, position)

    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        _, snapshot = self._before(identifier, position)
        self.guard.check()
        writer = rows.write.format("delta").mode("append").option("userMetadata", str(position))
        writer = writer.option("txnAppId", APPLICATION).option(
            "txnVersion", number_of(snapshot) + 1
        )
        writer.save(self._folder(identifier))
        self._ensure(identifier, position)
