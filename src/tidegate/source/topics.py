"""Topics as the brokers know them: names, partitions, ids and offsets, asked in bulk.

Thousands of topics take a few requests: one for all topics, one for their ids, and one per broker
for the offsets of all partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tidegate.changefeed.config.settings import nearest
from tidegate.model import SourceError
from tidegate.source.client import ANSWER_SECONDS, Connection

TopicPlace = tuple[str, int]
"""A topic's name and the number of a partition."""

RETRY_SECONDS = 0.2
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers before Kafka 2.8 give: topics have no ids."""
_INTERNAL = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)

Key = TypeVar("Key")


class KafkaTopics:
    """The topics of a Kafka cluster; SourceError where it does not answer.

    With `patience` it waits that many seconds for brokers, also while all are down.
    """

    def __init__(self, connection: Connection) -> None:
        self.patience = 0.0
        self._connection = connection
        self._kafka = connection.kafka
        self._admin = connection.admin()
        codes = self._kafka.KafkaError
        self._gone = {
            codes.UNKNOWN_TOPIC_OR_PART,
            codes.UNKNOWN_TOPIC_ID,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
        }
        self._passing = {
            codes.LEADER_NOT_AVAILABLE,
            codes.NOT_LEADER_FOR_PARTITION,
            codes.REPLICA_NOT_AVAILABLE,
            codes.OFFSET_NOT_AVAILABLE,
            codes.FENCED_LEADER_EPOCH,
            codes._NOENT,  # no leaders are known while the brokers start
            codes.UNKNOWN_LEADER_EPOCH,
            codes.REQUEST_TIMED_OUT,
            codes.NETWORK_EXCEPTION,
            codes._TIMED_OUT,
            codes._TRANSPORT,
            codes._ALL_BROKERS_DOWN,
        }

    def partitions(self) -> dict[str, int]:
        """All topics but Kafka's own, with how many partitions each has."""
        try:
            topics = self._connection.topics(self._admin, patience=self.patience)
        except self._kafka.KafkaException as error:
            raise self._connection.failed(error.args[0]) from error
        return {
            name: len(topic.partitions)
            for name, topic in topics.items()
            if topic.partitions and name not in _INTERNAL
        }

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic; those that do not exist are left out."""

        def ask(names: list[str]) -> dict[str, Any]:
            wanted = self._kafka.TopicCollection(names)
            answers: dict[str, Any] = self._admin.describe_topics(
                wanted, request_timeout=ANSWER_SECONDS
            )
            return answers

        answers = self._answers(list(topics), ask, lambda names: [])
        return {name: _id(answer) for name, answer in answers.items()}

    def starts(self, places: Iterable[TopicPlace]) -> dict[TopicPlace, int]:
        """The offset of the earliest message of each partition."""
        return self._offsets(places, self._kafka.admin.OffsetSpec.earliest())

    def ends(self, places: Iterable[TopicPlace]) -> dict[TopicPlace, int]:
        """The offset after the last message that can be read: open transactions cannot."""
        return self._offsets(places, self._kafka.admin.OffsetSpec.latest())

    def at_time(self, places: Iterable[TopicPlace], milliseconds: int) -> dict[TopicPlace, int]:
        """The offset of the first message at or after a time; -1 where there is none."""
        return self._offsets(places, self._kafka.admin.OffsetSpec.for_timestamp(milliseconds))

    def absent(self, topic: str, there: Iterable[str]) -> SourceError:
        """Says that a topic does not exist, and which one may be meant."""
        names = [name for name in there if name[:2] != "__"]
        hint = f"; {nearest(topic, names)}" if names else ""
        step = f"Check its name{hint}. TiCDC creates it when the changefeed first sends"
        return SourceError(f"the topic {topic!r}", "it does not exist", step)

    def _offsets(self, places: Iterable[TopicPlace], spec: Any) -> dict[TopicPlace, int]:
        def ask(left: list[TopicPlace]) -> dict[TopicPlace, Any]:
            answers = self._admin.list_offsets(
                {self._kafka.TopicPartition(*place): spec for place in left},
                isolation_level=self._kafka.IsolationLevel.READ_COMMITTED,
                request_timeout=ANSWER_SECONDS,
            )
            return {(at.topic, at.partition): answer for at, answer in answers.items()}

        def still_there(left: list[TopicPlace]) -> list[TopicPlace]:
            counts = self.partitions()
            return [(topic, number) for topic, number in left if number < counts.get(topic, 0)]

        answers = self._answers(list(places), ask, still_there)
        return {place: answer.offset for place, answer in answers.items()}

    def _answers(
        self,
        left: list[Key],
        ask: Callable[[list[Key]], Mapping[Key, Any]],
        still_there: Callable[[list[Key]], list[Key]],
    ) -> dict[Key, Any]:
        """The answers for all keys but those that are gone; asks again while a leader is missing.

        A broker may not have heard of a topic yet: `still_there` says which of the keys that are
        unknown to the one that was asked exist all the same.
        """
        answers: dict[Key, Any] = {}
        deadline = time.monotonic() + max(ANSWER_SECONDS, self.patience)
        while left:
            unknown, failed = [], []
            for key, future in ask(left).items():
                try:
                    answers[key] = future.result(4 * ANSWER_SECONDS)
                except self._kafka.KafkaException as error:
                    code = error.args[0].code()
                    if code in self._gone:
                        unknown.append(key)
                    elif code in self._passing:
                        failed.append(key)
                    if code not in self._gone and (
                        code not in self._passing or time.monotonic() > deadline
                    ):
                        raise self._connection.failed(error.args[0]) from error
            left = failed + (still_there(unknown) if unknown else [])
            if left:
                time.sleep(RETRY_SECONDS)
                if time.monotonic() > deadline + ANSWER_SECONDS:
                    raise SourceError(
                        f"the topic {left[0]!r}",
                        "the brokers list it and do not know it",
                        "Check the brokers, and that this user may describe the topic",
                    )
        return answers


def _id(description: Any) -> str:
    text = str(description.topic_id or "")
    return "" if text == _NO_ID else text
