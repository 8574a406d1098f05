"""A real Kafka for tests and trials: one KRaft broker on loopback, started from its jars.

It is stopped by its process id, also when the test run ends by an error. `restart` keeps data and
port, as a broker does that is upgraded. `make kafka` runs this module.
"""

from __future__ import annotations

import shutil
import signal
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
from tests.support.processes import START_SECONDS, ServerProcess, free_port

LONGEST_MESSAGE = 16 * 1024 * 1024

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{more}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{more}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=3
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
auto.create.topics.enable={create}
message.max.bytes={longest}
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
"""


def jars_folder() -> Path | None:
    """Where the broker's jars are, if they have been fetched."""
    from tidegate.spark import jars

    place = jars.folder()
    if place is None:
        return None
    own = place / jars.BROKER.folder
    return own if all((own / jar.file).is_file() for jar in jars.BROKER.jars) else None


class Broker:
    """A running broker; topics are made by `create`."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        create_topics: bool = False,
        listeners: Mapping[str, int] | None = None,
        properties: str = "",
    ) -> None:
        libraries = jars_folder()
        if libraries is None:
            raise RuntimeError("Kafka's jars are not there: run `make jars`.")
        self.folder = folder
        self.port = port or free_port()
        self._java = ["java", "-Xmx512m", "-cp", f"{libraries}/*"]
        self._properties = folder / "server.properties"
        self.process = ServerProcess(
            "Kafka", [*self._java, "kafka.Kafka", str(self._properties)], folder / "server.log"
        )
        self._properties.write_text(
            _PROPERTIES.format(
                port=self.port,
                controller=free_port(),
                folder=folder,
                longest=LONGEST_MESSAGE,
                create=str(create_topics).lower(),
                more="".join(f",{name}://127.0.0.1:{at}" for name, at in (listeners or {}).items()),
            )
            + properties
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
        # Each question itself waits for the answer.
        if not self.process.is_running:
            self.process.start(lambda: self.admin().list_topics(timeout=1))

    def stop(self) -> None:
        self.process.stop()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The broker is down within, and up again, with all it had, after it."""
        self.stop()
        try:
            yield
        finally:
            self.start()

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
        client, deadline = self.admin(), time.monotonic() + START_SECONDS
        while not self._has(client, topics, partitions):  # the controller is ahead of the broker
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker has not heard of {topics}")

    @staticmethod
    def _has(client: Any, topics: Iterable[str], partitions: int) -> bool:
        listed = client.list_topics(timeout=START_SECONDS).topics
        return all(
            name in listed
            and len(listed[name].partitions) == partitions
            and all(each.leader >= 0 for each in listed[name].partitions.values())
            for name in topics
        )

    def delete(self, *topics: str) -> None:
        """Deletes topics and waits until nobody knows them any more."""
        self._ask("delete_topics", list(topics))
        client, deadline = self.admin(), time.monotonic() + START_SECONDS
        while set(topics) & client.list_topics(timeout=START_SECONDS).topics.keys():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker still knows {topics}")
            time.sleep(0.1)

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
def broker(
    *,
    port: int | None = None,
    create_topics: bool = False,
    listeners: Mapping[str, int] | None = None,
    properties: str = "",
) -> Iterator[Broker]:
    """A broker in a folder of its own, which goes with it.

    `listeners` are more ports by the names of their listeners, which `properties` are about.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    try:
        running = Broker(
            folder,
            port=port,
            create_topics=create_topics,
            listeners=listeners,
            properties=properties,
        )
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
            running.process.wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
