"""An HTTP server that lets requests with the right token through to another, and refuses others.

Iceberg's REST server for tests checks no tokens; catalogs that people use do.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "right"
KNOWN = "known"
"""A token that is known, and may do nothing."""


@contextmanager
def guarded(port: int) -> Iterator[str]:
    """The URI of a guard before the server on a port."""

    class Guard(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if given != TOKEN:
                status, kind = (403, "Forbidden") if given == KNOWN else (401, "NotAuthorized")
                error = {"message": "Not for you", "type": f"{kind}Exception", "code": status}
                self._send(status, json.dumps({"error": error}).encode())
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                reply = connection.getresponse()
                self._send(reply.status, reply.read())
            finally:
                connection.close()

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Guard)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
