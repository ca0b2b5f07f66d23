"""Which opens are passed through, over a real cache. The calls to the kernel are noted."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.errors import PenstockError
from penstock.fuse import protocol as p
from penstock.fuse.backing import BackingFiles
from penstock.fuse.journal import BACKING, Ledger, new_ledger
from tests.support.gated_set import MakeSet, Set
from tests.support.waiting import wait_until

PASSED, THROUGH_US = 1, 0  # file handles


class Kernel:
    """Numbers the files that are registered: 1, 2, and so on."""

    def __init__(self, some: Set, ledger: int) -> None:
        self.some = some
        self.ledger = ledger
        self.registered: list[bytes] = []
        self.closed: list[int] = []
        self.dropped: list[int] = []
        self.error = 0
        self.backings = self.new_server()

    def clone(self, fuse: int) -> int:
        raise AssertionError(f"no clone of {fuse} is needed")

    def open_backing(self, fuse: int, file: int) -> int:
        assert fuse == -1
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.registered.append(os.pread(file, 100, 0))
        return len(self.registered)

    def close_backing(self, fuse: int, number: int) -> None:
        assert fuse == -1
        self.closed.append(number)

    def new_server(self) -> BackingFiles:
        return BackingFiles(-1, self.some.files, self.dropped.append, Ledger(self.ledger), self)

    def fetch(self, name: str) -> int:
        ino = self.some.ino(name)
        arrived: list[object] = []
        self.some.files.read(ino, 0, 100, arrived.append)
        wait_until(lambda: arrived)
        self.some.cache.wait_until_stored()
        return ino

    def noted(self) -> list[tuple[int, ...]]:
        """(inode, backing, users, opens through us) of each that the next server will find."""
        return [one[1:] for one in Ledger(self.ledger).opens()]


@pytest.fixture
def kernel(make_set: MakeSet, tmp_path: Path) -> Iterator[Kernel]:
    some = make_set({"a": b"alpha", "e": b""}, TierSpec("SSD", (tmp_path / "cache",), 1 << 20))
    ledger = new_ledger()
    made = Kernel(some, ledger)
    yield made
    os.close(ledger)


def test_a_cached_file_is_registered_once_and_released_with_its_last_user(kernel: Kernel) -> None:
    ino, backings = kernel.fetch("a"), kernel.backings
    assert [backings.open(ino) for _ in range(2)] == [(PASSED, p.OpenFlag.PASSTHROUGH, 1)] * 2
    assert (kernel.registered, backings.opens) == ([b"alpha"], 2)
    assert kernel.noted() == [(ino, 1, 2, 0)]
    backings.release(ino, PASSED, resent=True)  # perhaps a server before has counted it
    backings.release(999, PASSED, resent=False)
    backings.release(ino, PASSED, resent=False)
    assert (kernel.noted(), kernel.closed) == ([(ino, 1, 1, 0)], [])
    backings.release(ino, PASSED, resent=False)
    assert (kernel.noted(), kernel.closed) == ([], [1])
    with pytest.raises(PenstockError):
        backings.open(999)
    assert kernel.noted() == [], "one that failed to open has no user"
    assert backings.open(ino)[2] == 2, "registered anew"


def test_a_file_open_through_us_is_passed_through_after_all_those_are_closed(
    kernel: Kernel,
) -> None:
    ino, backings = kernel.some.ino("a"), kernel.backings
    through_us = (THROUGH_US, p.OpenFlag.KEEP_CACHE, 0)
    assert backings.open(ino) == through_us
    kernel.fetch("a")
    assert backings.open(ino) == through_us, "the kernel refuses both ways at once"
    assert (kernel.noted(), kernel.registered) == ([(ino, 0, 2, 2)], [])
    backings.release(ino, THROUGH_US, resent=False)
    assert kernel.noted() == [(ino, 0, 1, 1)]
    backings.release(ino, THROUGH_US, resent=False)
    assert (kernel.noted(), kernel.closed, kernel.dropped) == ([], [], [])
    for _ in range(2):
        assert backings.open(ino)[0] == PASSED
        backings.release(ino, PASSED, resent=False)
    assert kernel.dropped == [ino], "the pages that were read through us, once"
    assert backings.open(kernel.some.ino("e")) == through_us, "an empty file has nothing to pass"


def test_the_next_server_keeps_open_registrations_and_releases_the_rest(kernel: Kernel) -> None:
    ino = kernel.fetch("a")
    kernel.backings.open(ino)
    ledger = Ledger(kernel.ledger)
    ledger.write(ledger.enter(50), BACKING, 9)  # killed before it had a user
    after = kernel.new_server()
    assert (kernel.closed, kernel.noted()) == ([9], [(ino, 1, 1, 0)])
    assert after.open(ino) == (PASSED, p.OpenFlag.PASSTHROUGH, 1)
    for _ in range(2):
        after.release(ino, PASSED, resent=False)
    assert (len(kernel.registered), kernel.closed, kernel.noted()) == (1, [9, 1], [])


@pytest.mark.parametrize(
    ("error", "message", "stays_on"),
    [(errno.EPERM, "passthrough is off: ", False), (errno.ENOMEM, "a file is read through", True)],
)
def test_a_file_that_the_kernel_rejects_is_read_through_us(
    kernel: Kernel, caplog: pytest.LogCaptureFixture, error: int, message: str, *, stays_on: bool
) -> None:
    ino, backings = kernel.fetch("a"), kernel.backings
    kernel.error = error
    assert backings.open(ino)[0] == THROUGH_US
    assert caplog.messages[0].startswith(message)
    backings.release(ino, THROUGH_US, resent=False)
    kernel.error = 0
    assert backings.open(ino)[0] == (PASSED if stays_on else THROUGH_US)
