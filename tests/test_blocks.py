"""Block arithmetic, against the plainest definition there is."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.blocks import UNIT_BYTES, block_count, block_length, spans, unit_bounds


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 3000), st.integers(1, 700))
def test_spans_cover_a_range_once_and_in_order(
    offset: int, length: int, size: int, block: int
) -> None:
    covered = [
        span.number * block + position
        for span in spans(offset, length, size, block)
        for position in range(span.start, span.stop)
    ]
    assert covered == list(range(min(offset, size), min(offset + length, size)))[: len(covered)]
    assert len(covered) == max(0, min(offset + length, size) - offset)


@given(st.integers(1, 5000), st.integers(1, 700))
def test_block_lengths_add_up_to_the_object(size: int, block: int) -> None:
    lengths = [block_length(size, block, number) for number in range(block_count(size, block))]
    assert sum(lengths) == size
    assert all(0 < length <= block for length in lengths)


@given(st.integers(0, 3 << 20), st.integers(1, 1 << 20), st.integers(1, 4 << 20))
def test_unit_bounds_cover_the_range_in_whole_units(start: int, more: int, length: int) -> None:
    start = min(start, length - 1)
    stop = min(start + more, length)
    low, high = unit_bounds(start, stop, length)
    assert low <= start < stop <= high <= length
    assert low % UNIT_BYTES == 0
    assert high % UNIT_BYTES == 0 or high == length
