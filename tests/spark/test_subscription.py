"""The topics that a mirror subscribes to: those that tables of the feed can have, and no others.

Spark looks for a pattern anywhere in a topic's name, and so do these tests.
"""

import json
import re

import pytest

from tidegate.feed.config import ChangefeedConfig
from tidegate.spark.sources import bounded_topics, topic_options

URI = "kafka://h:1/main?protocol=open-protocol"


def config(topic="{schema}_{table}", matcher="*.*", rules=("*.*",)):
    return ChangefeedConfig.from_toml(
        f"[filter]\nrules = {json.dumps(rules, ensure_ascii=False)}\n"
        f"[sink]\ndispatchers = [{{matcher = ['{matcher}'], topic = '{topic}'}}]",
        URI,
    )


@pytest.mark.parametrize(
    ("rules", "taken", "others"),
    [
        (
            ["shop.*"],
            ["shop_orders", "Shop_Orders", "shop_", "main"],
            ["logs_app", "my_shop_a", "main_logs"],
        ),
        (["shop.order?", "crm.*"], ["shop_orders", "crm_x"], ["shop_items", "shop_order"]),
        (["shop.[a-c]*"], ["shop_a1"], ["shopping_a1", "my_shop_a1"]),
        (["`my-shop`.`it.em$`"], ["my-shop_it.em_", "my-shop_it_em_"], ["my-shop_item_"]),
        (["shop.*", "!shop.tmp*"], ["shop_a", "shop_tmp1"], ["logs_a"]),
        (["/^s/.*"], ["shop_a", "any_thing"], ["thing"]),
        (["!shop.*"], ["any_thing"], ["thing"]),
        (["größe.*"], ["gr__e_a"], ["grosse_a"]),
        (["s\\-p*.*"], ["s-pq_a"], ["s_p_a"]),
    ],
)
def test_a_pattern_is_bounded_by_what_the_filter_includes(rules, taken, others):
    pattern = bounded_topics(config(rules=rules))
    assert [name for name in taken if not re.search(pattern["subscribePattern"], name)] == []
    assert [name for name in others if re.search(pattern["subscribePattern"], name)] == []


def test_a_pattern_is_bounded_by_the_tables_of_its_rule():
    chosen = bounded_topics(config("t_{table}", "shop.o*", ["shop.*"]))["subscribePattern"]
    assert re.search(chosen, "t_orders")
    assert not re.search(chosen, "t_items")


def test_topics_that_were_read_before_are_still_taken():
    chosen = bounded_topics(config(rules=["shop.*"]), ["logs.app"])["subscribePattern"]
    assert re.search(chosen, "logs.app")
    assert not re.search(chosen, "logs_app")


def test_a_long_expression_whose_names_may_be_cut_is_not_bounded():
    long = "x" * 200 + "{schema}_{table}"
    chosen = bounded_topics(config(long, rules=["shop.*"]))["subscribePattern"]
    assert re.search(chosen, "x" * 200 + "crm_a")


def test_named_topics_are_subscribed_to_by_name():
    named = config("other")
    assert bounded_topics(named) == topic_options(named) == {"subscribe": "main,other"}
