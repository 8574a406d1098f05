"""An S3 server for tests, on loopback: moto's, which honours conditional writes.

It checks no signatures: any key is right, unless it knows no key. Objects are gone when it stops.
`python -m tests.support.s3 PORT` runs it in the foreground, which is also how the fixture starts it.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.support.processes import ServerProcess, free_port, is_listening

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "tester", "s3cret"
CHECKOUT = Path(__file__).resolve().parents[2]
LARGEST_IN_MEMORY = 1024 * 1024


class ObjectStore:
    """A running S3 server, and how each client is told of it."""

    def __init__(self, folder: Path, knows_no_key: bool = False) -> None:
        """With `knows_no_key` every request but the first is refused."""
        self.port = free_port()
        self.process = ServerProcess(
            "the S3 server",
            [sys.executable, "-m", "tests.support.s3", str(self.port)],
            folder / "s3.log",
            environment={
                "PYTHONPATH": str(CHECKOUT),
                "TMPDIR": str(folder),
                "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(LARGEST_IN_MEMORY),
                **({"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if knows_no_key else {}),
            },
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process.start(lambda: is_listening(self.port))

    def create_bucket(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise RuntimeError(f"no bucket {name}: {answer.status} {answer.read()[:500]!r}")
        finally:
            connection.close()

    def keys(self, part: str) -> list[str]:
        """The keys of all objects in which a text is."""
        found = []
        for bucket in _listed(self._get("/"), "Name"):
            found += [key for key in _listed(self._get(f"/{bucket}"), "Key") if part in key]
        return found

    def _get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def iceberg(self) -> dict[str, str]:
        """The settings of Iceberg's FileIO in Java, and of PyIceberg's."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.path-style-access": "true",
            "s3.region": REGION,
            "client.region": REGION,
        }

    def s3a(self) -> dict[str, str]:
        """The settings of Hadoop's s3a file system."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": REGION,
            "fs.s3a.access.key": ACCESS_KEY,
            "fs.s3a.secret.key": SECRET_KEY,
            "fs.s3a.path.style.access": "true",
        }


def _listed(answer: str, element: str) -> list[str]:
    return [
        each.text or ""
        for each in ElementTree.fromstring(answer).iter()
        if each.tag.endswith(f"}}{element}")
    ]


@contextmanager
def object_store(*, knows_no_key: bool = False) -> Iterator[ObjectStore]:
    """A server with no buckets yet."""
    with tempfile.TemporaryDirectory(prefix="tidegate-s3-") as folder:
        running = ObjectStore(Path(folder), knows_no_key)
        running.start()
        try:
            yield running
        finally:
            running.process.stop()


def main() -> None:
    """Serves until the process is ended."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    # A line for each request costs more than many requests do.
    logging.getLogger("werkzeug").setLevel(os.environ.get("S3_LOG", "ERROR"))
    WSGIRequestHandler.protocol_version = "HTTP/1.1"  # keeps connections
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)


if __name__ == "__main__":
    main()
