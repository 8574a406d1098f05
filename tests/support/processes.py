"""Servers that tests start: one process each, with its output in a file, stopped by its id.

A server that does not come up raises `RuntimeError` with the end of its log. It is stopped also
when the test run ends by an error.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 30
LOG_TAIL = 2000

JAVA = ("java", "-XX:TieredStopAtLevel=1")
"""Java for a server that runs for minutes: the second compiler would not pay for itself."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ServerProcess:
    """A server's process, which can be started again after it was stopped."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        stop_by: int = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._user = user
        self._stop_by = stop_by
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    def start(self, is_up: Callable[[], object], seconds: float = START_SECONDS) -> None:
        """Starts it and waits until `is_up`; an exception of that means: not yet."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                user=self._user,
            )
        atexit.register(self.stop)
        deadline = time.monotonic() + seconds
        reason: Exception | None = None
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if is_up():
                    return
            except Exception as error:
                reason = error
            time.sleep(0.05)
        ended = self._process.poll()
        what = "does not answer" if ended is None else f"ended with code {ended}"
        self.stop()
        raise RuntimeError(f"{self.name} {what}:\n{self.log_tail()}") from reason

    def log_tail(self) -> str:
        """The end of what it has printed."""
        return self.log.read_text(errors="replace")[-LOG_TAIL:]

    def wait(self) -> None:
        """Until it ends by itself."""
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """Ends the process and waits for it; nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.stop)
        process.send_signal(self._stop_by)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
