"""Quantities mean what they mean in Kubernetes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.specs.quantity import NotAQuantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("150Gi", 150 * 2**30), ("180G", 180 * 10**9), ("1.5Ti", 3 * 2**39), ("1E", 10**18),
     ("1e9", 10**9), ("1.5E3", 1500), ("0", 0), (".5Ki", 512), ("1.", 1), ("+1k", 1000),
     ("0.0001", 1),  # rounded up: a little is not nothing
     ("1000000000.0", 10**9),  # 1e9 without quotes, as YAML hands it over
     (" 5Mi ", 5 * 2**20)],
)  # fmt: skip
def test_a_quantity_is_so_many_bytes(text: str, size_bytes: int) -> None:
    assert parse_quantity(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [("100GB", "did you mean 100Gi (powers of 1024) or 100G (of 1000)?"),
     ("100GiB", "did you mean 100Gi?"),
     ("100 Gi", "did you mean 100Gi?"),
     ("64K", "did you mean 64Ki (powers of 1024) or 64k (of 1000)?"),
     ("500m", "500M is 10**6 bytes each, 500Mi 2**20"),
     *((text, "write it like 150Gi")
       for text in ("lots", "", "-5Gi", "20Ei", "1e9999999999", "١٢"))],
)  # fmt: skip
def test_what_is_not_a_quantity_is_refused_with_what_to_write_instead(text: str, hint: str) -> None:
    with pytest.raises(NotAQuantity) as caught:
        parse_quantity(text)
    assert caught.value.hint.startswith(hint)


@given(st.text("0123456789.eE+-KMGTiBmk ", max_size=12) | st.text(max_size=50))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    with suppress(NotAQuantity):
        assert 0 <= parse_quantity(text) < 2**63


@given(st.integers(0, 2**20), st.sampled_from(["", "Ki", "Mi", "Gi"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    power = ["", "Ki", "Mi", "Gi"].index(unit)
    assert parse_quantity(f"{number}{unit}") == number * 1024**power
