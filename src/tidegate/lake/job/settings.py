"""The settings of a mirror, from `tidegate.toml` or options, and what a lake remembers of itself.

    [feed]
    source = "kafka://broker:9092/feed?protocol=canal-json&enable-tidb-extension=true"

    [lake]
    folder = "lake"

    [tables]
    include = ["shop.*", "!shop.tmp_*"]
    rename = { "shop.orders" = "sales.orders" }

Paths are relative to the file. An option wins over the file. Every error names the setting.

What a lake remembers is kept with it. The changelog has the feed in its properties, and the prefix
in its name: by these a lake is found in its catalog or object store. A lake in a local folder has
the same in `lake.json`, which is read without Spark.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import SparkSession

from tidegate.changefeed.config.settings import (
    Duration,
    Flag,
    Form,
    Secret,
    SecretText,
    Text,
    Texts,
    Whole,
    nearest,
)
from tidegate.lake.apply.policy import Policy
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.job.mirror import MirrorSettings
from tidegate.lake.job.run import check_identity
from tidegate.lake.lake import find_lake, no_lake
from tidegate.lake.load.settings import MODES, LoadSettings
from tidegate.lake.routes import Routes
from tidegate.lake.storage.file_store import is_remote, make_folder, unwritable
from tidegate.model import ConfigError, LakeError
from tidegate.upstream.server import DatabaseServer
from tidegate.wire import PROTOCOLS
from tidegate.wire.kernel.compression import COMPRESSIONS

FORMATS = ("iceberg", "delta")
ENCODINGS = ("json", "avro", "document", "operations")
BAD_MESSAGES = ("stop", "continue")
SCHEMA_CHANGES = tuple(policy.value for policy in Policy)
REMEMBERED = "lake.json"
"""The file in a lake's folder that says how its tables are kept."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the file: the field that it fills, how it is written, and whether it is a path."""

    field: str
    form: Form
    path: bool = False


_KEYS: dict[str, _Key] = {
    "feed.source": _Key("source", Text(), path=True),
    "feed.changefeed": _Key("changefeed", Text(), path=True),
    "feed.protocol": _Key("protocol", Text(tuple(PROTOCOLS))),
    "feed.encoding": _Key("encoding", Text(ENCODINGS)),
    "feed.compression": _Key("compression", Text(tuple(COMPRESSIONS))),
    "feed.claim-check": _Key("claim_check", Text(), path=True),
    "feed.upstream": _Key("upstream", SecretText()),
    "feed.time-zone": _Key("time_zone", Text()),
    "feed.bad-messages": _Key("bad_messages", Text(BAD_MESSAGES)),
    "feed.max-messages": _Key("max_messages", Whole()),
    "lake.folder": _Key("folder", Text(), path=True),
    "lake.format": _Key("format", Text(FORMATS)),
    "lake.catalog": _Key("catalog", Text()),
    "lake.prefix": _Key("prefix", Text()),
    "lake.max-step": _Key("max_step_ms", Duration()),
    "lake.interval": _Key("interval_ms", Duration()),
    "lake.threads": _Key("threads", Whole(1, 64)),
    "lake.schema-changes": _Key("schema_changes", Text(SCHEMA_CHANGES)),
    "lake.keep-days": _Key("keep_days", Whole(0, 36_500)),
    "lake.maintain": _Key("maintain_ms", Duration()),
    "lake.lease": _Key("lease_ms", Duration()),
    "tables.include": _Key("include", Texts()),
    "load.source": _Key("load_source", SecretText(), path=True),
    "load.mode": _Key("load_mode", Text(MODES)),
    "load.snapshot": _Key("load_snapshot", Whole()),
    "load.password-file": _Key("load_password_file", Text(), path=True),
    "load.part-mb": _Key("load_part_mb", Whole(1, 65_536)),
    "load.resource-group": _Key("load_resource_group", Text()),
    "load.low-priority": _Key("load_low_priority", Flag()),
    "load.cdc": _Key("load_cdc", SecretText()),
    "load.changefeed-id": _Key("load_changefeed_id", Text()),
    "load.start-ts": _Key("load_start_ts", Whole()),
    "load.time-zone": _Key("load_time_zone", Text()),
    "load.header": _Key("load_header", Flag()),
    "load.separator": _Key("load_separator", Text()),
    "load.delimiter": _Key("load_delimiter", Text()),
    "load.null-value": _Key("load_null_value", Text()),
    "load.line-terminator": _Key("load_line_terminator", Text()),
    "load.escape-backslash": _Key("load_escape_backslash", Flag()),
    "load.dialect": _Key("load_dialect", Text()),
    "spark.master": _Key("master", Text()),
}
_OF_LOAD = "load_"
"""How the fields of LoadSettings begin among the others."""
_MAPPINGS = {"tables.rename": "rename", "spark.settings": "spark_settings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """All settings; `max_step_ms` is upstream time, `keep_days` what maintenance leaves.

    A mirror that follows its feed maintains the lake every `maintain_ms`; 0: never. `lease_ms` is
    how long after its end by force another one may have to wait.
    """

    source: str | None = None
    changefeed: str | None = None
    protocol: str | None = None
    encoding: str | None = None
    compression: str | None = None
    claim_check: str | None = None
    upstream: Secret | None = None
    time_zone: str = "UTC"
    bad_messages: str = "stop"
    max_messages: int | None = None
    folder: str | None = None
    format: str = "iceberg"
    catalog: str | None = None
    prefix: str | None = None
    max_step_ms: int | None = None
    interval_ms: int = 1000
    threads: int = 4
    schema_changes: str = Policy.EVOLVE.value
    keep_days: int = 7
    maintain_ms: int = 3_600_000
    lease_ms: int = 30_000
    include: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    load: LoadSettings = field(default_factory=LoadSettings)
    routes: Routes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ConfigError(
                "feed.time-zone", f"{self.time_zone!r} is no time zone; write it like Asia/Tokyo"
            ) from None
        if self.lease_ms < 1000:
            raise ConfigError("lake.lease", "a lease lasts a second at least; write it like 30s")
        self._server()
        if self.prefix and re.fullmatch(r"[A-Za-z0-9_-]{1,40}", self.prefix) is None:
            raise ConfigError(
                "lake.prefix",
                f"{self.prefix!r} goes before names: use letters, digits, _ and -, at most 40",
            )
        if self.format == "delta" and self.catalog is not None:
            raise ConfigError(
                "lake.catalog", "Delta tables are in the lake's folder: leave the catalog out"
            )
        object.__setattr__(self, "routes", Routes(self.include, dict(self.rename)))

    @classmethod
    def read(cls, path: str | Path) -> LakeSettings:
        """The settings of a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError("--config", f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError("--config", f"{path} is not text in UTF-8 ({error})") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "tidegate.toml") -> LakeSettings:
        """The settings of a file's text; paths in it are relative to the folder of `source`."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError("tidegate.toml", f"it is not TOML: {error}", source=source) from None
        found: dict[str, Any] = {}
        for table, content in document.items():
            if table not in _tables():
                reason = f"there is no such table; {nearest(table, _tables())}"
                raise ConfigError(table, reason, source=source)
            if not isinstance(content, dict):
                raise ConfigError(table, f"it must be a table: [{table}]", source=source)
            for name, value in content.items():
                path = f"{table}.{name}"
                found |= _setting(path, value, source)
        try:
            return cls().with_options(**found)
        except ConfigError as error:
            raise ConfigError(error.setting, error.reason, source=source) from None

    def with_options(self, **given: Any) -> LakeSettings:
        """These, but for what was given; None and nothing are not."""
        known = {each.name for each in fields(self) if each.init}
        chosen = {name: value for name, value in given.items() if value not in (None, (), {})}
        of_load = {name for name in chosen if name.startswith(_OF_LOAD)}
        assert chosen.keys() - of_load <= known, chosen.keys() - known
        if of_load:
            loads = {name.removeprefix(_OF_LOAD): chosen.pop(name) for name in of_load}
            chosen["load"] = replace(self.load, **loads)
        return replace(self, **chosen)

    @property
    def place(self) -> LakePlace:
        """Where the lake is."""
        if self.folder is None and self.catalog is None:
            raise ConfigError("lake.folder", "no lake is named: give --lake DIR")
        return LakePlace(self.folder or "", self.catalog, prefix=self.prefix or "")

    @property
    def is_remote(self) -> bool:
        """Whether the lake is known by its catalog or object store only."""
        return self.catalog is not None or is_remote(self.folder or "")

    def mirror(self) -> MirrorSettings:
        """What the mirror itself goes by."""
        return MirrorSettings(
            time_zone=self.time_zone,
            threads=self.threads,
            bad_messages=self.bad_messages,
            max_step_seconds=None if self.max_step_ms is None else self.max_step_ms / 1000,
            routes=self.routes,
            upstream=self._server(),
            schema_changes=Policy(self.schema_changes),
            maintain_seconds=self.maintain_ms / 1000 or None,
            lease_seconds=self.lease_ms / 1000,
            keep=timedelta(days=self.keep_days),
        )

    def _server(self) -> DatabaseServer | None:
        if not self.upstream:
            return None
        return DatabaseServer.parse(self.upstream.reveal(), "feed.upstream")

    # --- what a lake remembers --------------------------------------------------------------------

    def remembered(self) -> LakeSettings:
        """These as the lake has them that is there; LakeError where there is none.

        What only a catalog or store knows is found by `located`.
        """
        found = recall(self.place.folder)
        if found is None and not self.is_remote:
            raise no_lake(self.place)
        return self._as(found)

    def located(self, spark: SparkSession) -> LakeSettings:
        """These with the name and the prefix that a lake in a catalog or store has there."""
        if not self.is_remote or (self.folder is not None and self.prefix is not None):
            return self
        place = find_lake(spark, self.place, self.format, self.prefix)
        if place is None:
            return self
        return replace(self, folder=place.folder, prefix=place.prefix)

    def _as(self, found: Mapping[str, Any] | None) -> LakeSettings:
        """These with what a lake remembers; LakeError where the caller names another."""
        if found is None:
            # A catalog of its own needs a folder of this machine.
            is_delta = self.catalog is None and self.is_remote
            return replace(self, format="delta") if is_delta else self
        for name in ("catalog", "prefix"):
            given = getattr(self, name)
            if given is not None and given != found[name]:
                raise LakeError(
                    f"The lake {self.folder!r} has the {name} {found[name] or 'none'}, not {given}",
                    f"Leave --{name} out, or give another --lake",
                )
        return replace(self, **{name: found[name] for name in ("format", "catalog", "prefix")})

    def claim(self, format_given: bool) -> LakeSettings:
        """These for a lake that is to be mirrored into: what is there stays as it is."""
        if self.folder is None:
            raise ConfigError("lake.folder", "no lake is named: give --lake")
        found = recall(self.place.folder)
        if found is not None and format_given and found["format"] != self.format:
            raise LakeError(
                f"The tables of the lake {self.folder!r} are in the format {found['format']}, "
                f"not {self.format}",
                "Leave --format out, or give another --lake",
            )
        return self if found is None and format_given else self._as(found)

    def remember(self, feed: Mapping[str, Any]) -> None:
        """Writes down in the lake's folder how its tables are kept, and of which feed.

        An empty `feed` leaves that open: a lake is a feed's once something of it was read. Refuses
        another feed than the one that is there.
        """
        folder = self.place.folder
        there = recall(folder)
        if there is not None and feed:
            check_identity(there["feed"], feed)
        if is_remote(folder) or (there is not None and (there["feed"] or not feed)):
            return
        told = {"format": self.format, "catalog": self.catalog, "prefix": self.prefix or ""}
        text = json.dumps({**told, "feed": dict(feed)}, ensure_ascii=False, indent=1)
        path = Path(folder) / REMEMBERED
        # A file cut off by a full disk would be taken for a damaged one.
        draft = path.with_suffix(".draft")
        make_folder(path.parent)
        try:
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            raise unwritable(path.parent, error) from error


def recall(folder: str) -> dict[str, Any] | None:
    """What a lake's folder says of the lake; None where there is none, or it is elsewhere."""
    if not folder or is_remote(folder):
        return None
    path = Path(folder.removeprefix("file://")) / REMEMBERED
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {name: told[name] for name in ("format", "catalog", "prefix", "feed")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(
            f"The file {str(path)!r} is damaged ({error})",
            'It has {"format": "iceberg", "catalog": null, "prefix": "", "feed": {}}, as the lake '
            "was made",
        ) from error


def _tables() -> list[str]:
    return sorted({path.partition(".")[0] for path in (*_KEYS, *_MAPPINGS)})


def _setting(path: str, value: object, source: str) -> dict[str, Any]:
    if path in _MAPPINGS:
        if not isinstance(value, dict) or not all(isinstance(part, str) for part in value.values()):
            raise ConfigError(path, f"it must be a table of texts, not {value!r}", source=source)
        return {_MAPPINGS[path]: value}
    key = _KEYS.get(path)
    if key is None:
        known = [*_KEYS, *_MAPPINGS]
        raise ConfigError(path, f"there is no such setting; {nearest(path, known)}", source=source)
    try:
        found = key.form.of_toml(value)
    except ValueError as error:
        raise ConfigError(path, str(error), source=source) from None
    if key.path and isinstance(found, Secret):
        return {key.field: Secret(_located(found.reveal(), source))}
    if key.path and isinstance(found, str):
        found = _located(found, source)
    return {key.field: found}


def _located(path: str, source: str) -> str:
    """A path, relative to the folder of the file that names it; a URI as it is."""
    return path if ":" in path.partition("/")[0] else str(Path(source).parent / path)
