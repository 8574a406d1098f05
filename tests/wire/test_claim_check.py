"""Claim checks: objects are found by name alone, in both forms."""

import pytest

from tidegate.model import ClaimCheckError
from tidegate.wire import from_folder, to_folder
from tidegate.wire.kernel.claim_check import object_name, open_claim_check, pack, unpack


@pytest.mark.parametrize(
    "location",
    ["file:///a/b/x-1.json", "s3://bucket/folder/x-1.json?", "x-1.json", "/tmp/x-1.json"],
)
def test_an_object_is_named_by_the_last_element(location):
    if location.endswith("?"):
        with pytest.raises(ClaimCheckError):
            object_name(location)
    else:
        assert object_name(location) == "x-1.json"


def test_what_is_stored_is_loaded(tmp_path):
    location = to_folder(tmp_path)(pack(b"key", b"value"))
    assert open_claim_check(from_folder(tmp_path))(location) == (b"key", b"value")
    raw = to_folder(tmp_path)(b"\x16\x06value alone")
    assert open_claim_check(from_folder(tmp_path))(raw) == (None, b"\x16\x06value alone")


def test_objects_are_written_as_ticdc_writes_them():
    assert pack(None, b"abc") == b'{"key":null,"value":"YWJj"}'
    assert unpack("x", pack(None, b"abc")) == (None, b"abc")


def test_a_missing_object_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(ClaimCheckError, match="No such file"):
        from_folder(tmp_path)("s3://bucket/gone.json")


def test_links_out_of_the_folder_are_the_owners_business_but_paths_are_not(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.json").write_text("x")
    with pytest.raises(ClaimCheckError):
        from_folder(tmp_path / "in")("../secret.json")
