"""The package's own names."""

import tidegate.model


def test_the_package_has_every_name_that_it_lists():
    listed = tidegate.model.__all__
    assert [name for name in listed if not hasattr(tidegate.model, name)] == []
    assert len(listed) == len(set(listed))
