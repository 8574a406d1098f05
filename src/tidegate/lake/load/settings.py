"""The settings of a load: `[load]` in tidegate.toml, or options.

    [load]
    source = "mysql://reader@tidb:4000/"    # or a dump: a folder, or s3://…
    password-file = "/run/secrets/tidb"
    cdc = "http://cdc:8300"

The password can also be in the URI, or in the variable TIDEGATE_LOAD_PASSWORD.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.changefeed.config.settings import Secret
from tidegate.lake.load.job import LoadRequest
from tidegate.lake.load.sources import DatabaseSource, DumpSource, LoadSource
from tidegate.lake.load.start import KnownStart, start_of
from tidegate.lake.storage.file_store import (
    FileStore,
    hadoop_properties,
    is_remote,
    s3a_settings,
)
from tidegate.model import ConfigError
from tidegate.upstream.changefeed_api import ChangefeedApi
from tidegate.upstream.database import ReadOptions
from tidegate.upstream.detection import open_database
from tidegate.upstream.dump import Dump, DumpOptions
from tidegate.upstream.server import DatabaseServer

MODES = ("initial", "never", "only")
PASSWORD = "TIDEGATE_LOAD_PASSWORD"
_DATABASE = ("mysql://", "tidb://")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What existing rows are loaded from, and how.

    `mode` is `initial` (load, then follow the feed), `only` (a copy of one instant) or `never`.
    `snapshot` is the instant to load, a TSO; of a dump it replaces what `metadata` says. The fields
    from `time_zone` on are of dumps and have the names of Dumpling's flags.
    """

    source: Secret | None = None
    mode: str = "initial"
    snapshot: int | None = None
    password_file: str | None = None
    part_mb: int = 128
    resource_group: str | None = None
    low_priority: bool = False
    cdc: Secret | None = None
    changefeed_id: str | None = None
    start_ts: int | None = None
    time_zone: str | None = None
    header: bool | None = None
    separator: str | None = None
    delimiter: str | None = None
    null_value: str | None = None
    line_terminator: str | None = None
    escape_backslash: bool | None = None
    dialect: str | None = None

    def __post_init__(self) -> None:
        if self.is_database:
            self.server()
        if self.cdc:
            ChangefeedApi.parse(self.cdc.reveal(), "load.cdc")
        self.dump_options()

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to load."""
        return bool(self.source) and self.mode != "never"

    @property
    def is_database(self) -> bool:
        """Whether the source is a database; otherwise it is a dump."""
        return bool(self.source) and self._location.startswith(_DATABASE)

    @property
    def _location(self) -> str:
        return "" if self.source is None else self.source.reveal()

    def server(self) -> DatabaseServer:
        """The database."""
        server = DatabaseServer.parse(self._location, "load.source")
        if server.password:
            return server
        return replace(server, password=self._password())

    def _password(self) -> Secret:
        if self.password_file is None:
            return Secret(os.environ.get(PASSWORD, ""))
        try:
            text = Path(self.password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("load.password-file", f"it cannot be read: {error}") from None
        return Secret(text.rstrip("\r\n"))

    def dump_options(self) -> DumpOptions:
        """How a dump was written; rows are read with TIMESTAMPs in UTC."""
        names = {each.name for each in fields(DumpOptions)} - {"feed_zone"}
        given = {name: getattr(self, name) for name in names}
        return DumpOptions(**{name: value for name, value in given.items() if value is not None})

    def open(self, spark: SparkSession) -> LoadSource:
        """What is loaded from; an error where it cannot be reached or read."""
        size = self.part_mb << 20
        if self.is_database:
            options = ReadOptions(self.resource_group, self.low_priority)
            return DatabaseSource(open_database(self.server(), options), self.snapshot, size)
        location, files = self._location, None
        if is_remote(location):
            store = FileStore.of(hadoop_properties(s3a_settings(spark)))
            location, files = store.path(location), store.filesystem(location)
        return DumpSource(Dump.open(location, files, self.dump_options()), size)

    def start(self, topic: str | None) -> KnownStart | None:
        """Where the feed's changefeed starts, as far as it is told."""
        if self.start_ts is not None:
            return KnownStart(self.start_ts)
        if not self.cdc:
            return None
        api = ChangefeedApi.parse(self.cdc.reveal(), "load.cdc")
        return start_of(api, self.changefeed_id, topic)

    def request(self, spark: SparkSession, topic: str | None) -> LoadRequest | None:
        """What a mirror is to begin with; None: with its feed."""
        if not self.is_wanted:
            return None
        return LoadRequest(self.open(spark), self.start(topic))
