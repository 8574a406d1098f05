"""Compression: both algorithms, both ways, within bounds."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model import CompressionError, ConfigError
from tidegate.wire.kernel.compression import (
    COMPRESSIONS,
    compress,
    compressor,
    decompress,
    expander,
)


@pytest.mark.parametrize("algorithm", COMPRESSIONS)
@given(data=st.binary(max_size=2000))
def test_what_is_compressed_comes_back(algorithm, data):
    assert decompress(algorithm, compress(algorithm, data)) == data


@pytest.mark.parametrize("algorithm", COMPRESSIONS)
def test_a_value_may_be_as_large_as_the_limit_and_no_larger(algorithm):
    data = compress(algorithm, bytes(5000))
    assert decompress(algorithm, data, 5000) == bytes(5000)
    with pytest.raises(CompressionError, match="limit of 4999"):
        decompress(algorithm, data, 4999)


@pytest.mark.parametrize("algorithm", COMPRESSIONS)
@given(data=st.binary(max_size=60))
def test_other_bytes_are_an_error_or_bytes(algorithm, data):
    with suppress(CompressionError):
        assert len(decompress(algorithm, data, 10_000)) <= 10_000


def test_events_of_a_message_share_one_limit():
    event = compress("snappy", bytes(600))
    value = (len(event).to_bytes(8, "big") + event) * 2
    assert expander("open-protocol", "snappy", 1200)(None, value)[1] == (
        ((600).to_bytes(8, "big") + bytes(600)) * 2
    )
    with pytest.raises(CompressionError):
        expander("open-protocol", "snappy", 1199)(None, value)


def test_unknown_algorithms_are_refused():
    with pytest.raises(ConfigError, match="zstd"):
        compressor("zstd")
    with pytest.raises(ConfigError, match="zstd"):
        expander("simple", "zstd", 10)
    assert compressor(None) is None
    assert expander("simple", None, 10) is None
