"""The topics of a changefeed in the options of Spark's Kafka source."""

import re

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.spark.sources import topic_options


def config(topic):
    return ChangefeedConfig.from_toml(
        f"[filter]\nrules = ['shop.*']\n[sink]\ndispatchers = [{{matcher = ['*.*'], topic = '{topic}'}}]",
        "kafka://h:1/main?protocol=open-protocol",
    )


def test_named_topics_are_subscribed_to_by_name():
    assert topic_options(config("other")) == {"subscribe": "main,other"}


def test_a_pattern_is_for_whole_names_though_spark_looks_for_it_anywhere_in_them():
    pattern = topic_options(config("{schema}_{table}"))["subscribePattern"]
    for name in ("main", "shop_orders"):
        assert re.search(pattern, name)
    for name in ("main_logs", "my_shop_a", "crm_a", "logs_app"):
        assert not re.search(pattern, name)
