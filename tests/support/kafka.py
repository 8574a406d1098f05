"""A real Kafka for tests and trials: one KRaft broker on loopback, started from its jars.

It is stopped by its process id, also when the test run ends by an error. `restart` keeps data and
port, as a broker does that is upgraded. `make kafka` runs this module.
"""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.corpus import Message

START_SECONDS = 60
LONGEST_MESSAGE = 16 * 1024 * 1024

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=3
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable={create}
message.max.bytes={longest}
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
"""


def jars_folder() -> Path | None:
    """Where the broker's jars are, if they have been fetched."""
    from tidegate.spark import jars

    place = jars.folder()
    if place is None or not all((place / "kafka" / jar.file).is_file() for jar in jars.BROKER):
        return None
    return place / jars.BROKER_FOLDER


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Broker:
    """A running broker; topics are made by `create`."""

    def __init__(
        self, folder: Path, *, port: int | None = None, create_topics: bool = False
    ) -> None:
        libraries = jars_folder()
        if libraries is None:
            raise RuntimeError("Kafka's jars are not there: run `make jars`.")
        self.folder = folder
        self.port = port or free_port()
        self._java = ["java", "-Xmx512m", "-cp", f"{libraries}/*"]
        self._properties = folder / "server.properties"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._properties.write_text(
            _PROPERTIES.format(
                port=self.port,
                controller=free_port(),
                folder=folder,
                longest=LONGEST_MESSAGE,
                create=str(create_topics).lower(),
            )
        )
        # Quiet: without a configuration log4j says errors only, on the console.
        format_storage = ["kafka.tools.StorageTool", "format", "-c", str(self._properties)]
        subprocess.run(
            [*self._java, *format_storage, "-t", str(uuid4())],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def uri(self, topic: str, protocol: str, **parameters: str) -> str:
        """The sink URI of a feed in this topic."""
        more = "".join(f"&{name.replace('_', '-')}={value}" for name, value in parameters.items())
        return f"kafka://{self.address}/{topic}?protocol={protocol}{more}"

    # --- its life ---

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties)], stdout=log, stderr=log
            )
        atexit.register(self.stop)
        self._wait()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.stop)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait(self) -> None:
        """Until the broker ends by itself."""
        assert self._process is not None
        self._process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The broker is down within, and up again, with all it had, after it."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def _wait(self) -> None:
        """Until it answers; each question itself waits for the answer."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"Kafka ended at once:\n{self._log.read_text()[-2000:]}")
            try:
                self.admin().list_topics(timeout=1)
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    said = self._log.read_text()[-2000:]
                    raise RuntimeError(f"Kafka does not answer:\n{said}") from error

    # --- what is in it ---

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, *topics: str, partitions: int = 3, **settings: str) -> None:
        """Makes topics; settings by Kafka's names with underscores for dots."""
        from confluent_kafka.admin import NewTopic

        config = {name.replace("_", "."): value for name, value in settings.items()}
        wanted = [NewTopic(topic, num_partitions=partitions, config=config) for topic in topics]
        self._ask("create_topics", wanted)

    def add_partitions(self, topic: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._ask("create_partitions", [NewPartitions(topic, total)])

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Drops the records before these offsets, as retention does."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
        self._ask("delete_records", places)

    def _ask(self, what: str, of: list[Any]) -> None:
        client = self.admin()  # must outlive its answers
        for future in getattr(client, what)(of).values():
            future.result(START_SECONDS)

    def send(self, streams: Mapping[str, Iterable[Message]]) -> None:
        """Sends messages to the partitions that they name, in order, a topic each stream."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "linger.ms": 20,
                "enable.idempotence": True,
                "message.max.bytes": LONGEST_MESSAGE,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for topic, messages in streams.items():
            for message in messages:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    partition=message.partition,
                    on_delivery=delivered,
                )
                producer.poll(0)
        left = producer.flush(START_SECONDS)
        if failed or left:
            raise RuntimeError(f"{left} messages were not sent; {failed[:1]}")


@contextmanager
def broker(*, port: int | None = None, create_topics: bool = False) -> Iterator[Broker]:
    """A broker in a folder of its own, which goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    try:
        running = Broker(folder, port=port, create_topics=create_topics)
        running.start()
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Runs a broker in the foreground."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else None
    # Without a handler Python would end at once and leave the broker behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with broker(port=port, create_topics=True) as running:
        uri = running.uri("TOPIC", "canal-json", enable_tidb_extension="true")
        print(f"Kafka runs at {running.address}; its topics are made when first written to.")
        print(f"A feed's sink URI: {uri}")
        print("Ctrl-C stops it and removes its data.", flush=True)
        try:
            running.wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
