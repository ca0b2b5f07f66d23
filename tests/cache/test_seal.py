"""Values of the shared tier: verified, and sealed where there is a key."""

import random
from pathlib import Path

import pytest

from penstock.cache.identity import Block
from penstock.cache.seal import PIECE_BYTES, Packing, Sealing, open_packing, piece_lengths
from penstock.errors import OptionError

DATA = random.Random(3).randbytes(1000)
BLOCK = Block(bytes(16), 0, 0, len(DATA), True)
PACKINGS = [Packing(), Sealing(b"a secret of a cluster")]
every_packing = pytest.mark.parametrize("packing", PACKINGS, ids=["plain", "sealed"])


def value_of(packing: Packing, name: bytes) -> bytearray:
    return bytearray(b"".join(bytes(part) for part in packing.pack(name, memoryview(DATA))))


def opened(packing: Packing, name: bytes, value: bytearray) -> bytes | None:
    view = memoryview(value)
    found = packing.unpack(name, view[: packing.head_bytes], view[packing.head_bytes :])
    return None if found is None else bytes(found)


@every_packing
def test_a_value_opens_under_its_own_name(packing: Packing) -> None:
    value = value_of(packing, b"name")
    assert len(value) == packing.head_bytes + len(DATA) + packing.tail_bytes
    assert opened(packing, b"name", value) == DATA


@every_packing
def test_a_value_under_another_name_is_wrong(packing: Packing) -> None:
    assert opened(packing, b"other", value_of(packing, b"name")) is None


@every_packing
def test_any_flipped_bit_is_found(packing: Packing) -> None:
    whole = value_of(packing, b"name")
    for at in range(0, len(whole), 7):
        value = bytearray(whole)
        value[at] ^= 1 << at % 8
        assert opened(packing, b"name", value) is None, at


@every_packing
def test_names_are_short_and_plain(packing: Packing) -> None:
    name = packing.name(Block(b"\xff" * 16, 2**31, 0, 1, False), 2**20)
    assert len(name) < 250
    assert name.isascii()
    assert not set(name) & set(b" \r\n\0")


@every_packing
def test_no_two_pieces_have_one_name(packing: Packing) -> None:
    blocks = [BLOCK, BLOCK._replace(number=1), BLOCK._replace(digest=b"x" * 16)]
    names = {packing.name(block, piece) for block in blocks for piece in range(3)}
    assert len(names) == 9


def test_a_sealed_value_shows_neither_its_bytes_nor_its_name() -> None:
    name = PACKINGS[1].name(BLOCK, 0)
    assert BLOCK.digest.hex().encode() not in name
    assert DATA[:16] not in value_of(PACKINGS[1], name)


def test_another_key_opens_nothing_and_finds_nothing() -> None:
    ours, others = Sealing(b"key number one !"), Sealing(b"key number two !")
    assert ours.name(BLOCK, 0) != others.name(BLOCK, 0)
    assert opened(others, b"name", value_of(ours, b"name")) is None


def test_a_plain_value_is_no_sealed_one() -> None:
    assert opened(PACKINGS[1], b"name", value_of(PACKINGS[0], b"name")) is None


@pytest.mark.parametrize(
    ("length", "pieces"),
    [(1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (8 * 1024 * 1024, 16)],
)
def test_a_block_is_cut_into_pieces(length: int, pieces: int) -> None:
    found = piece_lengths(length)
    assert (len(found), sum(found)) == (pieces, length)
    assert max(found) <= PIECE_BYTES


def test_a_key_file_that_is_missing_or_too_short_is_rejected(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("secret\n")
    for file in (tmp_path / "none", short):
        with pytest.raises(OptionError) as caught:
            open_packing(file)
        assert str(file) in str(caught.value)
        assert "head -c 32" in (caught.value.hint or "")
