"""Arrow columns from Python's bytes are what Arrow itself makes of them."""

import pyarrow as pa
import pytest

from tidegate.wire.kernel.binary import binary_arrays


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="none"),
        pytest.param([b"a", b"", b"bcd"], id="bytes"),
        pytest.param([None, b"a", None, b"", *[b"x"] * 20, None], id="with NULL"),
        pytest.param([None] * 9, id="all NULL"),
    ],
)
def test_values_become_one_column(values):
    (column,) = binary_arrays(values)
    column.validate(full=True)
    assert column == pa.array(values, pa.binary())


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        pytest.param([4, 4, 4, 4], [2, 2], id="equal"),
        pytest.param([20, 1, 1], [1, 2], id="a large one at first"),
        pytest.param([1, 20, 1], [1, 1, 1], id="a large one between others"),
        pytest.param([10, 10], [1, 1], id="as large as the limit"),
        pytest.param([None, 10, None, 10, None], [3, 2], id="NULL takes no room"),
    ],
)
def test_no_column_is_longer_than_the_limit_unless_one_value_is(sizes, parts):
    values = [None if size is None else b"x" * size for size in sizes]
    columns = binary_arrays(values, 10)
    assert [len(column) for column in columns] == parts
    assert [value for column in columns for value in column.to_pylist()] == values


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="not str"):
        binary_arrays([b"a", "b"])
