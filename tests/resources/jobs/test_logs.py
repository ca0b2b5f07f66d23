"""What instances print, kept within bounds."""

import re
from pathlib import Path

import pytest

from penstock.resources.jobs.logs import Log
from penstock.store import secrets
from penstock.units import MIB


def printed(path: Path, data: bytes, most_bytes: int, piece: int = 1000) -> bytes:
    log = Log(path, most_bytes)
    for at in range(0, len(data), piece):
        log.take(data[at : at + piece])
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("piece", [100, 4096, 60_000])
@pytest.mark.parametrize("attempts", [1, 2])
def test_beginning_and_end_are_kept_and_what_is_missing_is_counted(
    tmp_path: Path, attempts: int, piece: int
) -> None:
    data = b"".join(b"line %06d\n" % number for number in range(20_000))
    kept = b""
    for _ in range(attempts):
        kept = printed(tmp_path / "log", data, 64 * 1024, piece)
    head, count, tail = re.split(rb"\n--- ([0-9,]+) bytes are missing here ---\n", kept)
    assert len(kept) <= 64 * 1024 + 100
    assert data.startswith(head)
    assert data.endswith(tail)
    assert min(len(head), len(tail)) >= 15 * 1024
    assert len(head) + len(tail) + int(count.replace(b",", b"")) == attempts * len(data)


def test_what_fits_is_kept_whole(tmp_path: Path) -> None:
    data = b"".join(b"line %06d\n" % number for number in range(4000))
    assert printed(tmp_path / "log", data, 64 * 1024) == data


def test_the_first_piece_may_be_larger_than_all_that_is_kept(tmp_path: Path) -> None:
    kept = printed(tmp_path / "log", b"x" * 99_999 + b"\n" + b"y\n" * 50_000, 16 * 1024, 100_000)
    assert kept.count(b"bytes are missing here") == 1


def test_a_line_without_an_end_is_kept_too(tmp_path: Path) -> None:
    kept = printed(tmp_path / "log", b"x" * 3 * MIB, 16 * MIB, 65536)
    assert kept == b"x" * 3 * MIB


def test_secrets_are_cut_out_however_they_are_cut_into_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_known", ("open-sesame",))
    kept = printed(tmp_path / "log", b"key open-sesame\nsig=abc\xff open-sesame", MIB, 7)
    assert b"open-sesame" not in kept
    assert b"abc" not in kept
    assert kept.startswith(b"key ")


def test_a_full_disk_costs_the_log_not_the_job() -> None:
    log = Log(Path("/dev/full"), MIB)
    log.take(b"line\n")
    log.close()
