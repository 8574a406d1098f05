"""TiCDC's API, played by a small HTTP server: what is asked, and what is made of the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidegate.model import ConfigError, LakeError, SourceError, SourceUnreachable
from tidegate.upstream.changefeed_api import ChangefeedApi, ChangefeedState, check_start

START = 447_000_000_000_000_001
CHANGEFEED = {
    "upstream_id": 7,
    "namespace": "default",
    "id": "to-lake",
    "sink_uri": "kafka://broker:9092/topic?protocol=open-protocol",
    "create_time": "2026-11-17 10:00:00.000",
    "start_ts": START,
    "config": {"force_replicate": False},
    "state": "normal",
    "creator_version": "v8.5.0",
    "resolved_ts": START + 20,
    "checkpoint_ts": START + 10,
    "checkpoint_time": "2026-11-17 10:00:01.000",
}


class Api(ThreadingHTTPServer):
    """Answers from `answers` by path; `requests` has path and credentials."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str | None]] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, document: object, status: int = 200) -> None:
        self.answers[path] = (status, json.dumps(document).encode())


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        status, body = self.server.answers.get(self.path.partition("?")[0], (404, b"404 page"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def cdc() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_one_changefeed(cdc):
    cdc.answer("/api/v2/changefeeds/to-lake", CHANGEFEED)
    found = ChangefeedApi.parse(cdc.uri).changefeed("to-lake")
    assert found == ChangefeedState(
        "to-lake", "default", "normal", START + 10, START, CHANGEFEED["sink_uri"]
    )
    assert cdc.requests == [("/api/v2/changefeeds/to-lake?namespace=default", None)]


def test_a_name_cannot_leave_the_path(cdc):
    with pytest.raises(SourceError):
        ChangefeedApi.parse(cdc.uri).changefeed("../../a?b", "n&s")
    assert cdc.requests[0][0] == "/api/v2/changefeeds/..%2F..%2Fa%3Fb?namespace=n%26s"


def test_all_changefeeds(cdc):
    items = [
        {"namespace": "default", "id": "a", "state": "normal", "checkpoint_tso": START},
        {
            "namespace": "default",
            "id": "b",
            "state": "failed",
            "checkpoint_tso": START,
            "error": {"message": "no broker"},
        },
    ]
    cdc.answer("/api/v2/changefeeds", {"total": 2, "items": items})
    assert ChangefeedApi.parse(cdc.uri).changefeeds() == [
        ChangefeedState("a", "default", "normal", START),
        ChangefeedState("b", "default", "failed", START, error="no broker"),
    ]
    assert cdc.requests[0][0] == "/api/v2/changefeeds?namespace=default&state=all"


def test_no_changefeeds(cdc):
    cdc.answer("/api/v2/changefeeds", {"total": 0, "items": None})
    assert ChangefeedApi.parse(cdc.uri).changefeeds() == []


def test_credentials_are_sent_and_not_shown(cdc):
    cdc.answer("/api/v2/changefeeds", {"total": 0, "items": []})
    api = ChangefeedApi.parse(cdc.uri.replace("http://", "http://me:s3%2Fcret@"))
    api.changefeeds()
    assert cdc.requests[0][1] == "Basic bWU6czMvY3JldA=="
    assert "s3" not in repr(api) + api.address


@pytest.mark.parametrize(
    ("status", "document", "said"),
    [
        (
            400,
            {"error_msg": "changefeed not exists, x", "error_code": "CDC:ErrChangeFeedNotExists"},
            r"changefeed not exists, x \(CDC:ErrChangeFeedNotExists\)\. See which there are: cdc cli",
        ),
        (401, {}, r"HTTP status 401\. Give the user and password"),
        (500, {"error_msg": "boom", "error_code": "CDC:ErrInternal"}, r"boom .*what TiCDC logs"),
        (200, [], "is not an object"),
        (200, {"id": "x", "start_ts": "soon"}, "a changefeed cannot be read"),
        (200, {}, "a changefeed cannot be read"),
    ],
)
def test_errors_are_sentences(cdc, status, document, said):
    cdc.answer("/api/v2/changefeeds/x", document, status)
    with pytest.raises(SourceError, match=said):
        ChangefeedApi.parse(cdc.uri).changefeed("x")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000])
def test_something_else_that_answers(cdc, body):
    cdc.answers["/api/v2/changefeeds"] = (200, body)
    with pytest.raises(SourceError, match="not JSON"):
        ChangefeedApi.parse(cdc.uri).changefeeds()


def test_nobody_answers():
    with pytest.raises(SourceUnreachable, match=r"refused.*port 8300"):
        ChangefeedApi.parse("http://127.0.0.1:1").changefeeds()


@pytest.mark.parametrize(
    "uri", ["", "cdc:8300", "ftp://host", "http://:8300", "http://h:x", "http://h/?x=1"]
)
def test_a_wrong_address(uri):
    with pytest.raises(ConfigError, match="--cdc"):
        ChangefeedApi.parse(uri)


def test_certificates_that_are_not_there():
    with pytest.raises(ConfigError, match="certificates cannot be read"):
        ChangefeedApi.parse("https://127.0.0.1:1/?ca=/missing").changefeeds()


@pytest.mark.parametrize("later", [0, 1, 1 << 18])
def test_a_changefeed_that_starts_at_or_before_the_load(later):
    check_start(START, START + later)


def test_a_hole_is_refused_with_the_command_that_closes_it():
    with pytest.raises(LakeError) as caught:
        check_start(START + (2000 << 18), START, changefeed="to-lake", server="http://c:8300")
    said = str(caught.value)
    assert "2.000 s after" in said
    assert "cdc cli changefeed remove --server=http://c:8300 --changefeed-id=to-lake" in said
    assert f"--start-ts={START} " in said
