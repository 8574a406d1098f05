"""The topics of a changefeed: those that its tables can have, and no others."""

import json

import pytest

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.config.subscription import Subscription

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
    topics = Subscription.of(config(rules=rules))
    assert [name for name in taken if not topics.matches(name)] == []
    assert [name for name in others if topics.matches(name)] == []


def test_a_pattern_is_bounded_by_the_tables_of_its_rule():
    topics = Subscription.of(config("t_{table}", "shop.o*", ["shop.*"]))
    assert topics.matches("t_orders")
    assert not topics.matches("t_items")


def test_a_long_expression_whose_names_may_be_cut_is_not_bounded():
    long = "x" * 200 + "{schema}_{table}"
    assert Subscription.of(config(long, rules=["shop.*"])).matches("x" * 200 + "crm_a")


def test_named_topics_are_taken_by_name():
    topics = Subscription.of(config("other"))
    assert (topics.names, topics.pattern, topics.text) == (("main", "other"), None, "main,other")
    assert [name for name in ("main", "other", "main2") if topics.matches(name)] == [
        "main",
        "other",
    ]


def test_what_identifies_the_topics_does_not_change_with_the_filter():
    wide, narrow = Subscription.of(config()), Subscription.of(config(rules=["shop.*"]))
    assert wide.text == narrow.text == "main|[A-Za-z0-9._-]*_[A-Za-z0-9._-]*"
