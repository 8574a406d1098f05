"""Sniffing: every message of every golden file is named rightly, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import corpus
from tidegate.wire import Sniffed, sniff, sniff_all

NAMES = {"open": "open-protocol", "canal": "canal-json", "simple": "simple", "craft": "craft"}
VARIANTS = [v for v in corpus.variants() if v.scenario in ("types", "ddl", "large", "nopk")]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_golden_messages_are_named(variant):
    expected = Sniffed(NAMES[variant.protocol], variant.encoding, variant.compression)
    messages = corpus.messages(variant.name)
    named = [sniff(message.key, message.value) for message in messages]
    plain = Sniffed(expected.protocol, expected.encoding)
    # A resolved event of the open protocol has nothing that could be compressed.
    assert set(named) <= ({expected, plain} if variant.protocol == "open" else {expected})
    assert sniff_all((message.key, message.value) for message in messages) == expected


@pytest.mark.parametrize(
    "key, value",
    [
        (None, None),
        (None, b""),
        (b"", b""),
        (None, b"hello"),
        (None, b"{}"),
        (None, b'{"a":1}'),
        (None, b"[1,2]"),
        (b"key", b"value"),
        (None, bytes(40)),
    ],
)
def test_other_messages_are_not_named(key, value):
    assert sniff(key, value) is None


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_sniffing_never_fails(key, value):
    sniff(key, value)
