"""A lake: the changelog of a feed, the mirrored tables, and the record of their snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.lake.apply.executor import Applier
from tidegate.lake.apply.plan.steps import Step
from tidegate.lake.apply.repair.applier import RepairApplier
from tidegate.lake.apply.repair.late_log import LateEvents, LateLog
from tidegate.lake.changelog.changelog import Changelog
from tidegate.lake.formats import has_lake, open_format
from tidegate.lake.formats.base import LakePlace, TableFormat, local_folder
from tidegate.lake.formats.iceberg import recorded
from tidegate.lake.lease import SECONDS, LakeLeaseRecord, Lease, held
from tidegate.lake.quarantine import Quarantine
from tidegate.lake.record import Snapshot, Snapshots
from tidegate.model import LakeError, TableSchema, TidegateError
from tidegate.model.sql import quoted
from tidegate.model.tso import LAST_LOGICAL, tso_from_datetime
from tidegate.spark.types import to_text
from tidegate.sql.tables import Name

_CLAIM = "tidegate.feed"


class Lake:
    """The tables of one feed in one place. Opening one that is not there is an error."""

    @classmethod
    def create(
        cls,
        spark: SparkSession,
        place: LakePlace,
        format_name: str = "iceberg",
        *,
        zone: str = "UTC",
    ) -> Lake:
        """The lake in a place, made where there is none."""
        named = _named(spark, place, format_name)
        if has_lake(format_name, spark, named):
            return cls(spark, place, format_name, zone=zone, is_there=True)
        tables = open_format(format_name, spark, named)
        try:
            lake = cls(spark, place, format_name, zone=zone, is_there=True)
        except (PySparkException, Py4JError, OSError, TidegateError) as error:
            _discard(tables, error)
            raise
        lake.is_new = True
        return lake

    def __init__(
        self,
        spark: SparkSession,
        place: LakePlace,
        format_name: str = "iceberg",
        *,
        zone: str = "UTC",
        is_there: bool = False,
    ) -> None:
        """`is_there` says that the caller has looked, or that the lake is to be made."""
        self.zone = zone
        self.is_new = False
        """Whether this process has made it."""
        self.place = place = _named(spark, place, format_name)
        self.format_name = format_name
        if not is_there and not has_lake(format_name, spark, place):
            raise no_lake(place)
        self.tables = open_format(format_name, spark, place)
        self.spark = self.tables.spark
        self.changelog = Changelog.open(self.tables)
        claim = self.claim()
        if claim is not None:
            self._check_name(claim["folder"])
        self.snapshots = Snapshots(spark, self.tables)

    # --- whose it is ------------------------------------------------------------------------------

    @property
    def folder(self) -> str:
        """Where the lake is, in one spelling."""
        return _spelled(self.place.folder)

    def _check_name(self, made_as: str) -> None:
        """Refuses another lake than the one that was named."""
        place = self.place
        if place.catalog is None or self.format_name == "delta":
            check_folder(made_as, self.folder)
        elif made_as != self.folder:
            raise LakeError(
                f"The lake with the prefix {place.prefix!r} in the catalog {place.catalog!r} is "
                f"{made_as!r}, not {self.folder!r}",
                f"Give --lake {made_as}, or another --prefix for a lake of its own",
            )

    def discard(self, error: BaseException) -> None:
        """Removes a lake that this process has made and nothing was read into, after an error."""
        if self.is_new:
            _discard(self.tables, error)

    def claim(self) -> dict[str, Any] | None:
        """The feed that the lake is of, and the folder that it was made in, once that is known.

        It binds the lake once something of the feed was read: see `is_empty`.
        """
        told = self.changelog.log.properties().get(_CLAIM)
        return None if told is None else json.loads(told)

    def set_claim(self, feed: Mapping[str, Any]) -> None:
        """Makes the lake this feed's."""
        told = json.dumps({"feed": feed, "folder": self.folder})
        self.changelog.log.set_properties({_CLAIM: told})

    def is_empty(self) -> bool:
        """Whether nothing of any feed was read into the lake."""
        return self.changelog.read().isEmpty()

    @contextmanager
    def leased(self, seconds: float = SECONDS) -> Iterator[Lease]:
        """Holds the lake's lease, for whoever writes to it; LakeTaken while another has it."""
        logs = (self.changelog.log, self.snapshots.log, self.quarantine.log)
        record = LakeLeaseRecord(self.folder, self.tables, logs)
        with held(Lease(record, seconds), self.tables) as lease:
            yield lease

    # --- what a mirror does with it ---------------------------------------------------------------

    @cached_property
    def quarantine(self) -> Quarantine:
        """The messages that could not be read."""
        return Quarantine(self)

    def late_log(self, changelog: Changelog, late: LateEvents) -> LateLog:
        """The events of a changelog that the tables went past without them."""
        return LateLog(changelog, late)

    def apply(self, steps: Sequence[Step], *given: Any, **settings: Any) -> None:
        """Carries out steps; the arguments are those of `Applier`."""
        Applier(self.tables, *given, is_healthy=self._is_healthy, **settings).run(steps)

    def repair(self, steps: Sequence[Step], *given: Any, **settings: Any) -> None:
        """Carries out steps that repair tables; the arguments are those of `RepairApplier`."""
        repair = RepairApplier(self.tables, *given, is_healthy=self._is_healthy, **settings)
        repair.run(steps)

    def _is_healthy(self) -> bool:
        """Whether Spark works and the lake's own tables can be written."""
        try:
            self.spark.range(1).count()
            self.snapshots.touch()
        except (PySparkException, Py4JError):
            return False
        return True

    # --- reading ----------------------------------------------------------------------------------

    def snapshot(self, at: int | datetime | None = None) -> Mapping[Name, DataFrame]:
        """Every table as of one upstream instant: the last recorded that is not after `at`."""
        return {found.name: self._read(found) for found in self.snapshots.at(_ts(at))}

    def read(self, database: str, table: str, at: int | datetime | None = None) -> DataFrame:
        """One table as of an upstream instant, or as it is now."""
        wanted = Name(database, table)
        for found in self.snapshots.at(_ts(at)):
            if found.name.folded == wanted.folded:
                return self._read(found)
        when = "" if at is None else f" at {at}"
        raise LakeError(
            f"The lake has no table {wanted}{when}",
            "Look at what it has with `tidegate status`",
        )

    def texts(
        self,
        database: str,
        table: str,
        at: int | datetime | None = None,
        *,
        ordered: bool = False,
    ) -> DataFrame:
        """One table with every value as the text that the wire layer has for it.

        `ordered` sorts the rows by their key, or by all columns where there is none.
        """
        rows = self.read(database, table, at)
        wanted = Name(database, table).folded
        schemas = self.snapshots.schemas(_ts(at)).items()
        told = next(found for name, found in schemas if name.folded == wanted)
        if ordered:
            rows = rows.orderBy(*(quoted(name) for name in told.handle_key() or rows.columns))
        return self._texts(rows, told)

    def snapshot_texts(self, at: int | datetime | None = None) -> Mapping[Name, DataFrame]:
        """Every table as of one upstream instant, with the texts of the wire layer."""
        schemas = self.snapshots.schemas(_ts(at))
        return {name: self._texts(rows, schemas[name]) for name, rows in self.snapshot(at).items()}

    def _texts(self, rows: DataFrame, schema: TableSchema) -> DataFrame:
        columns = {column.name: column for column in schema.columns}
        return rows.select(
            *(
                to_text(columns[name], F.col(quoted(name)), self.zone).alias(name)
                for name in rows.columns
            )
        )

    def _read(self, found: Snapshot) -> DataFrame:
        return self.tables.read(found.identifier, found.version)


def no_lake(place: LakePlace) -> LakeError:
    """What to say where a lake is looked for and there is none."""
    if place.catalog is not None:
        prefix = f" with the prefix {place.prefix!r}" if place.prefix else ""
        return LakeError(
            f"There is no lake{prefix} in the catalog {place.catalog!r}",
            "Give the --catalog and --prefix that were given to `tidegate mirror`",
        )
    return LakeError(
        f"There is no lake in {place.folder!r}",
        "Give the folder that was given to `tidegate mirror --lake`",
    )


def find_lake(
    spark: SparkSession, place: LakePlace, format_name: str, prefix: str | None
) -> LakePlace | None:
    """The lake of a catalog or store with this prefix, or with the name `place.folder`, if any.

    Without either it is the only one that is there; LakeError where there are several.
    """
    lakes = open_format(format_name, spark, place).lakes()
    names = {
        each: json.loads(properties[_CLAIM])["folder"] if _CLAIM in properties else None
        for each, properties in lakes.items()
        if prefix is None or each == prefix
    }
    if place.folder:
        wanted = _spelled(place.folder)
        found = (each for each, name in names.items() if name == wanted)
        return next((place._replace(prefix=each) for each in found), None)
    if not names:
        return None
    if len(names) > 1:
        listed = ", ".join(f"{name or 'no name'} (prefix {each!r})" for each, name in names.items())
        raise LakeError(
            f"There are several lakes in the catalog {place.catalog!r}: {listed}",
            "Say which one with --prefix or --lake",
        )
    ((each, name),) = names.items()
    return place._replace(prefix=each, folder=name or "")


def _spelled(folder: str) -> str:
    """The name of a lake, in one spelling."""
    return folder if "://" in folder else str(Path(folder).absolute())


def _discard(tables: TableFormat, error: BaseException) -> None:
    """Leaves nothing behind of a lake that could not be made."""
    try:
        tables.discard()
    except (PySparkException, Py4JError, OSError) as second:
        error.add_note(f"What was made of the lake may still be there: {second}")


def check_folder(made_in: str, folder: str) -> None:
    """Refuses a lake that was moved or copied: its tables name their files by path.

    A link at the old place that leads to the new one will do.
    """
    if made_in == folder or Path(made_in).resolve() == Path(folder).resolve():
        return
    raise LakeError(
        f"The lake in {folder!r} was moved or copied: it was made in {made_in!r}, and its tables "
        "name their files there",
        f"Move it back to {made_in!r}, or mirror the feed into another --lake",
    )


def _named(spark: SparkSession, place: LakePlace, format_name: str) -> LakePlace:
    """With the name that the lake's catalog has, or one that no other lake of the session has."""
    if place.catalog is not None or format_name != "iceberg":
        return place
    folder = local_folder(place.folder)
    told = recorded(folder)
    if told is not None:
        check_folder(told.folder, str(folder))
    name = place.name if told is None else told.name
    taken = spark.conf.get(f"spark.sql.catalog.{name}.warehouse", None)
    if taken is None or taken.startswith(f"{folder}/"):
        return place._replace(name=name)
    if told is not None:
        raise LakeError(
            f"The session has another lake under the name {name!r}, with tables in {taken}",
            "Open this one in a session of its own",
        )
    mark = blake2b(str(folder).encode(), digest_size=4).hexdigest()
    return place._replace(name=f"{name}_{mark}")


def _ts(at: int | datetime | None) -> int | None:
    """The last TSO of the millisecond that a time names."""
    return tso_from_datetime(at, LAST_LOGICAL) if isinstance(at, datetime) else at
