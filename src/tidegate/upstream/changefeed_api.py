"""What TiCDC's HTTP API says of changefeeds: where each starts and how far it is.

Only reads. Authority: `GET /api/v2/changefeeds` in TiCDC's documentation of its OpenAPI.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from tidegate.changefeed.config.settings import Secret
from tidegate.model import (
    ConfigError,
    LakeError,
    SourceError,
    SourceUnreachable,
    tso_to_datetime,
)

DEFAULT_PORT = 8300
SECONDS = 10.0
MAX_BYTES = 64 << 20

_TLS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class ChangefeedState:
    """A changefeed; `start_ts` and `sink_uri` are None in listings, which do not have them."""

    id: str
    namespace: str
    state: str
    checkpoint_ts: int
    start_ts: int | None = None
    sink_uri: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ChangefeedApi:
    """A TiCDC server; credentials are never shown."""

    scheme: str
    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    password: Secret = field(default_factory=lambda: Secret(""))
    tls: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, uri: str, setting: str = "--cdc") -> ChangefeedApi:
        """From http://host:8300, or https://user:password@host:8300/?ca=FILE&cert=FILE&key=FILE."""
        form = "write it as http://host:8300 or https://host:8300/?ca=FILE"
        try:
            parts = urlsplit(uri)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ConfigError(setting, form) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(setting, form)
        tls = tuple(parse_qsl(parts.query))
        for name, _ in tls:
            if name not in _TLS:
                raise ConfigError(setting, f"it has no parameter {name!r}; there are ca, cert, key")
        user = None if parts.username is None else unquote(parts.username)
        password = Secret(unquote(parts.password or ""))
        return cls(parts.scheme, parts.hostname, port, user, password, tls)

    @property
    def address(self) -> str:
        """What can be shown of it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def changefeed(self, id: str, namespace: str = "default") -> ChangefeedState:
        """One changefeed, with its start_ts."""
        path = f"/api/v2/changefeeds/{quote(id, safe='')}"
        return self._state(self._get(path, {"namespace": namespace}))

    def changefeeds(self, namespace: str = "default") -> list[ChangefeedState]:
        """All changefeeds, in whatever state."""
        answer = self._get("/api/v2/changefeeds", {"namespace": namespace, "state": "all"})
        items = answer.get("items")
        if items is None and answer.get("total") == 0:
            return []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._odd("it has no list of changefeeds")
        return [self._state(item) for item in items]

    def _state(self, members: Mapping[str, Any]) -> ChangefeedState:
        try:
            # Listings say checkpoint_tso.
            checkpoint = members.get("checkpoint_ts", members.get("checkpoint_tso"))
            start = members.get("start_ts")
            error = members.get("error")
            return ChangefeedState(
                id=str(members["id"]),
                namespace=str(members.get("namespace") or "default"),
                state=str(members.get("state") or "unknown"),
                checkpoint_ts=int(checkpoint or start or 0),
                start_ts=None if start is None else int(start),
                sink_uri=members.get("sink_uri"),
                error=error.get("message") if isinstance(error, Mapping) else None,
            )
        except (KeyError, TypeError, ValueError) as fault:
            raise self._odd(f"a changefeed cannot be read ({fault!r})") from None

    def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        request = Request(f"{self.address}{path}?{urlencode(query)}")
        if self.user is not None:
            pair = f"{self.user}:{self.password.reveal()}".encode()
            request.add_header("Authorization", f"Basic {b64encode(pair).decode()}")
        # As with every other connection to the cluster, no proxy is used.
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._context()))
        try:
            with opener.open(request, timeout=SECONDS) as answer:
                body = answer.read(MAX_BYTES)
        except HTTPError as error:
            with error:
                raise self._refusal(error.code, error.read(MAX_BYTES)) from None
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise SourceUnreachable(
                f"TiCDC at {self.address}",
                f"{reason}",
                "Check the address, which is that of a `cdc server` (port 8300), and that it runs",
            ) from None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise self._odd("it is not JSON") from None
        if not isinstance(document, dict):
            raise self._odd("it is not an object")
        return document

    def _context(self) -> ssl.SSLContext:
        files = dict(self.tls)
        try:
            context = ssl.create_default_context(cafile=files.get("ca"))
            if "cert" in files:
                context.load_cert_chain(files["cert"], files.get("key"))
        except OSError as error:
            raise ConfigError("--cdc", f"its certificates cannot be read: {error}") from None
        return context

    def _refusal(self, status: int, body: bytes) -> SourceError:
        try:
            document = json.loads(body)
            said = f"{document['error_msg']} ({document['error_code']})"
        except (ValueError, RecursionError, KeyError, TypeError):
            said = f"HTTP status {status}"
        if status in (401, 403) or "ErrUnauthorized" in said or "ErrCredential" in said:
            step = "Give the user and password of TiDB that TiCDC asks for: http://user:password@…"
        elif "ErrChangeFeedNotExists" in said or status == 404:
            step = f"See which there are: cdc cli changefeed list --server={self.address}"
        else:
            step = f"See what TiCDC logs, and: cdc cli changefeed list --server={self.address}"
        return SourceError(f"TiCDC at {self.address}", f"it says: {said}", step)

    def _odd(self, reason: str) -> SourceError:
        return SourceError(
            f"TiCDC at {self.address}",
            f"its answer is not that of TiCDC's API v2: {reason}",
            "Check the address: it is that of a `cdc server`, version 6.2 or newer (port 8300)",
        )


def check_start(
    start_ts: int, load_ts: int, *, changefeed: str = "ID", server: str = "URL"
) -> None:
    """Refuses a changefeed that starts after the instant of a load: changes between are nowhere."""
    if start_ts <= load_ts:
        return
    gap = tso_to_datetime(start_ts) - tso_to_datetime(load_ts)
    raise LakeError(
        f"The changefeed {changefeed} starts at {start_ts}, {gap.total_seconds():,.3f} s after the "
        f"instant {load_ts} of the load, so the changes between the two would be missing",
        "Load again at the present, which is after the start, or create the changefeed again at "
        f"the load's instant: cdc cli changefeed remove --server={server} "
        f"--changefeed-id={changefeed} && cdc cli changefeed create --server={server} "
        f"--changefeed-id={changefeed} --start-ts={load_ts} --sink-uri=…",
    )
