"""A database that speaks MySQL's protocol: how it is named and reached, and its rows as texts.

The texts are those of the change batch (docs/batch.md), so that a row that was asked for is read
like one of the feed; but TIMESTAMPs are in UTC, whatever the zone of the feed.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidegate.changefeed.config.settings import Secret
from tidegate.model import Column, ConfigError, MySQLType, ValueForm
from tidegate.model.sql import quoted
from tidegate.wire.kernel.text import format_double, format_float

DEFAULT_PORT = 4000  # TiDB's
CONNECT_SECONDS = 10
READ_SECONDS = 300

_SCHEMES = ("mysql", "tidb")
_TLS = {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key"}
_NUMBERED = (MySQLType.ENUM, MySQLType.SET, MySQLType.BIT)
_WHOLE = (ValueForm.INTEGER, ValueForm.UNSIGNED, ValueForm.YEAR)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """Where a database is and who asks; the password is never shown."""

    host: str
    port: int = DEFAULT_PORT
    user: str = "root"
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, uri: str, setting: str) -> DatabaseServer:
        """From mysql://user:password@host:port/; an error names the setting, not the URI."""
        form = "write it as mysql://user:password@host:port/, odd characters as %2F and the like"
        try:
            parts = urlsplit(uri)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ConfigError(setting, form) from None
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ConfigError(setting, form)
        tls = []
        for name, value in parse_qsl(parts.query):
            if name not in _TLS:
                known = ", ".join(_TLS)
                raise ConfigError(setting, f"it has no parameter {name!r}; there are {known}")
            tls.append((_TLS[name], value))
        return cls(
            parts.hostname,
            port,
            unquote(parts.username or "root"),
            Secret(unquote(parts.password or "")),
            tuple(tls),
        )

    @property
    def address(self) -> str:
        """What can be shown of it."""
        return f"{self.host}:{self.port}"

    def connect(self, **settings: Any) -> Any:
        """A connection of PyMySQL whose values are the server's own texts; times are in UTC."""
        pymysql = driver()
        from pymysql.converters import encoders

        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password.reveal(),
            charset="utf8mb4",
            autocommit=True,
            conv=encoders,  # nothing is decoded
            init_command="SET time_zone = '+00:00', sql_mode = ''",
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            **dict(self.tls),
            **settings,
        )


def driver() -> Any:
    """PyMySQL, which is there only if somebody asked for it."""
    try:
        import pymysql
    except ModuleNotFoundError as error:
        if error.name != "pymysql":
            raise
        raise ConfigError("mysql://", "it needs PyMySQL: pip install 'tidegate[mysql]'") from None
    return pymysql


def has_snapshots(connection: Any) -> bool:
    """Whether the server can show the past: TiDB can."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'tidb_snapshot'")
        return bool(cursor.fetchall())


def selected(column: Column) -> str:
    """What to SELECT for a column: what `text_of` reads without loss."""
    name = quoted(column.name)
    if column.code in _NUMBERED:
        return f"CAST({name} AS UNSIGNED)"  # `+ 0` would be a double, or negative
    if column.value_form in (ValueForm.FLOAT, ValueForm.DOUBLE):
        return f"{name} + 0e0"  # of a FLOAT alone six digits are shown
    return name


def text_of(column: Column, value: str | bytes | None) -> str | None:
    """The change batch's text of what a server gave for `selected`."""
    if value is None:
        return None
    form = column.value_form
    if form == ValueForm.BINARY:
        data = value.encode("utf-8") if isinstance(value, str) else value
        return b64encode(data).decode("ascii")
    text = value if isinstance(value, str) else value.decode("utf-8")
    if column.code in _NUMBERED or form in _WHOLE:
        return str(int(text))  # ZEROFILL and YEAR have zeros in front
    if form == ValueForm.DECIMAL:
        return f"{Decimal(text):f}"  # ZEROFILL again
    if form == ValueForm.FLOAT:
        return format_float(float(text))
    if form == ValueForm.DOUBLE:
        return format_double(float(text))
    return text
