"""A cache in a folder that others can walk into: nothing in it can be read or changed by them."""

from pathlib import Path

from tests.conftest import Mount
from tests.security.conftest import AsNobody
from tests.security.test_other_users import TRY, private, state  # noqa: F401 - fixtures


def test_the_cache_is_closed_to_others_whatever_the_umask(
    private: Mount, in_the_open: Path, as_nobody: AsNobody  # noqa: F811
) -> None:  # fmt: skip
    cache = in_the_open / "cache"
    places = list(cache.rglob("*"))
    assert {path.name for path in places} >= {"index.sqlite", "objects"}
    assert private.stats()["cached_bytes"] > 0
    assert as_nobody(TRY, *places).stdout == ""
