"""The public API is a list, and this is it: a name is added or removed here on purpose."""

from importlib.metadata import version

import treadle

PUBLIC = ["__version__"]


def test_the_public_names_are_these() -> None:
    assert sorted(treadle.__all__) == sorted(PUBLIC)


def test_every_public_name_is_there() -> None:
    assert [name for name in treadle.__all__ if not hasattr(treadle, name)] == []


def test_the_version_is_the_installed_one() -> None:
    assert treadle.__version__ == version("treadle")
