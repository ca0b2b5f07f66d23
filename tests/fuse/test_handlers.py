"""Each request of the kernel, over a folder and without a kernel; its layouts and numbers."""

import enum
import errno
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock import errors
from penstock.cache.fetch import FetchJob
from penstock.cache.identity import CachedObject
from penstock.cache.tier import TierSpec
from penstock.catalog.tree import ROOT
from penstock.fuse import protocol as p
from penstock.fuse.backing import BackingFiles
from penstock.fuse.errno_table import errno_of
from penstock.fuse.handlers import Handlers, KernelOptions
from penstock.fuse.mounting import READAHEAD_KB
from penstock.fuse.peers import Peers
from penstock.fuse.session import BlockingReply, FetchReply, FuseError
from penstock.vfs.filesystem import File
from tests.support.gated_set import MakeSet, Set
from tests.support.waiting import wait_until

FILES = {**{f"d/{number:03}": b"x" * 600 for number in range(40)}, "a": b"alpha", "e": b""}
OPTIONS = KernelOptions(
    uid=11, gid=12, file_mode=0o440, dir_mode=0o550, attr_timeout_s=2.5, entry_timeout_s=7.25
)


class Kernel:
    """Sends requests to the handlers, and takes their answers apart."""

    def __init__(
        self, some: Set, options: KernelOptions = OPTIONS, backings: BackingFiles | None = None
    ) -> None:
        self.some = some
        self.agreed: list[p.Init] = []
        self.table = Handlers(some.files, options, backings, self.agreed.append).table()

    def ask(self, op: p.Op, ino: int, body: bytes = b"") -> bytes:
        request = bytearray(p.IN_HEADER_BYTES) + body
        answer = self.table[op](ino, request, len(request))
        if isinstance(answer, FetchReply):
            arrived: list[object] = []
            if (job := answer.start(arrived.append)) is not None:
                answer.run(job)
            (answer,) = wait_until(lambda: arrived)
        if isinstance(answer, BlockingReply):
            answer = answer.answer()
        assert isinstance(answer, list | tuple)
        return b"".join(answer)

    def refused(self, op: p.Op, ino: int, body: bytes = b"") -> int:
        with pytest.raises(FuseError) as caught:
            self.ask(op, ino, body)
        return caught.value.number

    def attr(self, ino: int) -> tuple[int, ...]:
        return p.ATTR.unpack(self.ask(p.Op.GETATTR, ino)[p.ATTR_OUT.size :])

    def list(self, ino: int, after: int = 0, size: int = 4096) -> list[tuple[int, int, bytes]]:
        """(inode, where to go on, name) of each entry."""
        answer = self.ask(p.Op.READDIR, ino, p.READ_IN.pack(0, after, size))
        assert len(answer) <= size
        found: list[tuple[int, int, bytes]] = []
        while answer:
            number, next_at, length, _ = p.DIRENT.unpack_from(answer)
            found.append((number, next_at, answer[p.DIRENT.size : p.DIRENT.size + length]))
            answer = answer[p.DIRENT.size + length + (-(p.DIRENT.size + length) % 8) :]
        return found


@pytest.fixture
def kernel(make_set: MakeSet) -> Kernel:
    return Kernel(make_set(FILES))


def test_a_lookup_returns_attributes_and_their_timeout(kernel: Kernel) -> None:
    answer = kernel.ask(p.Op.LOOKUP, ROOT, b"a\0")
    ino, _, entry_s, attr_s, entry_ns, attr_ns = p.ENTRY.unpack_from(answer)
    assert ino == kernel.some.ino("a")
    assert (entry_s, entry_ns, attr_s, attr_ns) == (7, 250_000_000, 2, 500_000_000)
    assert p.ATTR.unpack(answer[p.ENTRY.size :]) == kernel.attr(ino)
    missing = p.ENTRY.unpack_from(kernel.ask(p.Op.LOOKUP, ROOT, b"none\0"))
    assert missing == (0, 0, 7, 0, 250_000_000, 0), "that it is missing is remembered as long"


def test_attributes_come_from_the_options_and_the_file(kernel: Kernel) -> None:
    node = kernel.some.files.node(kernel.some.ino("d/000"))
    seconds, nanos = divmod(node.mtime_ns, 10**9)
    times = (seconds,) * 3 + (nanos,) * 3
    mode, folder_mode = stat.S_IFREG | 0o440, stat.S_IFDIR | 0o550
    assert kernel.attr(node.ino) == (node.ino, 600, 2, *times, mode, 1, 11, 12, 0, 4096, 0)
    folder = kernel.attr(kernel.some.ino("d"))
    assert (folder[1], folder[9:]) == (0, (folder_mode, 1, 11, 12, 0, 4096, 0))


def test_a_listing_continues_after_each_entry_and_ends(kernel: Kernel) -> None:
    folder = kernel.some.ino("d")
    names: list[bytes] = []
    after = 0
    while page := kernel.list(folder, after, size=200):
        assert len(page) < 10
        names += [name for _, _, name in page]
        after = page[-1][1]
    assert names == [b".", b"..", *(f"{number:03}".encode() for number in range(40))]
    (dot,) = kernel.list(folder, size=40)  # room for one: the next reply begins with the other
    assert (dot[0], dot[2]) == (folder, b".")
    assert kernel.list(folder, after=dot[1])[0] == (ROOT, ROOT, b"..")


def test_a_name_that_no_file_can_have_is_too_long_and_not_missing(kernel: Kernel) -> None:
    assert kernel.refused(p.Op.LOOKUP, ROOT, b"x" * 256 + b"\0") == errno.ENAMETOOLONG
    assert p.ENTRY.unpack_from(kernel.ask(p.Op.LOOKUP, ROOT, b"x" * 255 + b"\0"))[0] == 0


def test_a_listing_with_attributes_has_the_same_entries(kernel: Kernel) -> None:
    plus = kernel.ask(p.Op.READDIRPLUS, ROOT, p.READ_IN.pack(0, 0, 4096))
    head = p.ENTRY.size + p.ATTR.size
    for ino, next_at, name in kernel.list(ROOT):
        if name in (b".", b".."):  # the kernel knows them: they come without attributes
            assert plus[:head] == bytes(head)
            plus = plus[head + p.DIRENT.size + 8 :]
            continue
        assert p.ENTRY.unpack_from(plus)[0] == ino
        assert p.ATTR.unpack(plus[p.ENTRY.size : head]) == kernel.attr(ino)
        kind = stat.S_IFMT(kernel.attr(ino)[9]) >> 12
        assert p.DIRENT.unpack_from(plus, head) == (ino, next_at, len(name), kind)
        end = head + p.DIRENT.size + len(name)
        plus = plus[end + (-(end - head) % 8) :]
    assert plus == b""
    assert [name for _, _, name in kernel.list(ROOT)] == [b".", b"..", b"a", b"d", b"e"]


def test_an_empty_folder_lists_itself_once(make_set: MakeSet) -> None:
    kernel = Kernel(make_set({}))
    assert [name for _, _, name in kernel.list(ROOT)] == [b".", b".."]
    assert kernel.list(ROOT, after=ROOT) == []
    no_attributes, dot = bytes(p.ENTRY.size + p.ATTR.size), p.DIRENT.size + 8
    plain = kernel.ask(p.Op.READDIR, ROOT, p.READ_IN.pack(0, 0, 4096))
    plus = kernel.ask(p.Op.READDIRPLUS, ROOT, p.READ_IN.pack(0, 0, 4096))
    assert plus == no_attributes + plain[:dot] + no_attributes + plain[dot:]
    # The kernel keeps listings, and needs not open them.
    assert kernel.refused(p.Op.OPENDIR, ROOT) == errno.ENOSYS
    kernel = Kernel(kernel.some, KernelOptions(0, 0, cache_listings=False))
    assert kernel.ask(p.Op.OPENDIR, ROOT) == p.OPEN_OUT.pack(0, 0, 0)


def test_bytes_are_read_at_any_offset_and_counted(kernel: Kernel) -> None:
    for offset, size, expected in ((0, 3, b"alp"), (2, 100, b"pha"), (0, 5, b"alpha")):
        body = p.READ_IN.pack(0, offset, size)
        assert kernel.ask(p.Op.READ, kernel.some.ino("a"), body) == expected
    blocks, free, _, files, *_ = p.STATFS.unpack(kernel.ask(p.Op.STATFS, ROOT))
    assert (blocks, free, files) == (-(-(40 * 600 + 5) // 4096), 0, 42)


def test_cached_bytes_are_answered_at_once(make_set: MakeSet, tmp_path: Path) -> None:
    kernel = Kernel(make_set(FILES, TierSpec("SSD", (tmp_path / "cache",), 1 << 20)))
    ino, body = kernel.some.ino("a"), p.READ_IN.pack(0, 1, 3)
    request = bytearray(p.IN_HEADER_BYTES) + body
    assert isinstance(kernel.table[p.Op.READ](ino, request, len(request)), FetchReply)
    assert kernel.ask(p.Op.READ, ino, body) == b"lph"
    kernel.some.cache.wait_until_stored()
    assert kernel.table[p.Op.READ](ino, request, len(request)) == [b"lph"]


def test_a_read_of_a_damaged_catalog_leaves_no_orphaned_fetch(
    make_set: MakeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(make_set(FILES))
    handlers = Handlers(
        kernel.some.files, OPTIONS, None, kernel.agreed.append, cast("Peers", FakePeers())
    )
    kernel.table, read = handlers.table(), p.READ_IN.pack(0, 0, 5)
    ino = kernel.some.ino("a")

    def damaged(_ino: int) -> File:
        raise errors.CatalogDamaged("its header is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(kernel.some.files, "file", damaged)
        with pytest.raises(errors.CatalogDamaged):
            kernel.ask(p.Op.READ, ino, read)
    assert kernel.ask(p.Op.READ, ino, read) == b"alpha"


class FakePeers:
    """Lets this process fetch everything."""

    def claim(self, _what: CachedObject, job: FetchJob) -> FetchJob:
        return job


def test_extended_attributes_of_files_are_served(kernel: Kernel) -> None:
    ino, folder = kernel.some.ino("a"), kernel.some.ino("d")
    version = (kernel.some.files.node(ino).version or "").encode()
    assert version
    name = b"user.penstock.version\0"
    sized: Callable[[int], bytes] = lambda size: p.GETXATTR_IN.pack(size, 0)  # noqa: E731
    assert kernel.ask(p.Op.GETXATTR, ino, sized(4096) + name) == version
    assert kernel.ask(p.Op.GETXATTR, ino, sized(4096) + b"user.penstock.cached\0") == b"0"
    assert struct.unpack("<Q", kernel.ask(p.Op.GETXATTR, ino, sized(0) + name)) == (len(version),)
    assert kernel.ask(p.Op.GETXATTR, ino, sized(len(version)) + name) == version
    too_small = sized(len(version) - 1) + name
    assert kernel.refused(p.Op.GETXATTR, ino, too_small) == errno.ERANGE
    assert kernel.refused(p.Op.GETXATTR, ino, sized(9) + b"user.other\0") == errno.ENODATA
    assert kernel.refused(p.Op.GETXATTR, folder, sized(4096) + name) == errno.ENODATA
    both = b"user.penstock.version\0user.penstock.cached\0"
    assert kernel.ask(p.Op.LISTXATTR, ino, sized(4096)) == both
    assert kernel.ask(p.Op.LISTXATTR, folder, sized(4096)) == b""


def test_every_modifying_request_is_rejected(kernel: Kernel) -> None:
    assert {kernel.refused(op, ROOT) for op in p.CHANGING_OPS} == {errno.EROFS}
    for op in (p.Op.FORGET, p.Op.BATCH_FORGET, p.Op.INTERRUPT):
        assert kernel.table[op](ROOT, bytearray(80), 80) is None
    assert p.Op.OPEN not in kernel.table


class FakeBackings:
    """Opens each file as handle 7 over backing 8, and notes what is released."""

    released: tuple[object, ...] = ()

    def open(self, _ino: int) -> tuple[int, int, int]:
        return 7, p.OpenFlag.PASSTHROUGH, 8

    def release(self, ino: int, handle: int, *, resent: bool) -> None:
        self.released = (ino, handle, resent)


def test_with_passthrough_a_file_is_opened_for_reading_only_and_released(make_set: MakeSet) -> None:
    backings = FakeBackings()
    kernel = Kernel(make_set(FILES), backings=cast("BackingFiles", backings))
    init(kernel, p.KERNEL_VERSION, 40, 2**64 - 1)
    assert p.Init.PASSTHROUGH in kernel.agreed[0]
    assert p.Init.NO_OPEN_SUPPORT not in kernel.agreed[0]
    ino = kernel.some.ino("a")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND):
        assert kernel.refused(p.Op.OPEN, ino, struct.pack("<II", flags, 0)) == errno.EROFS
    read_only = struct.pack("<II", os.O_RDONLY | os.O_NONBLOCK, 0)
    opened = kernel.ask(p.Op.OPEN, ino, read_only)
    assert p.OPEN_OUT.unpack(opened) == (7, p.OpenFlag.PASSTHROUGH, 8)
    kernel.ask(p.Op.RELEASE, ino, p.RELEASE_IN.pack(7))
    assert backings.released == (ino, 7, False)


def init(kernel: Kernel, major: int, minor: int, offered: int, *, extended: bool = True) -> bytes:
    if extended:
        offered |= p.Init.INIT_EXT
    body = p.INIT_IN.pack(major, minor, 128 << 10, offered & 0xFFFF_FFFF)
    return kernel.ask(p.Op.INIT, 0, body + (offered >> 32).to_bytes(4, "little"))


def test_only_features_that_both_sides_know_are_agreed(kernel: Kernel) -> None:
    everything = 2**64 - 1
    answer = p.INIT_OUT.unpack(init(kernel, p.KERNEL_VERSION, 99, everything))
    (agreed,) = kernel.agreed
    assert answer[:3] == (7, 40, READAHEAD_KB * 1024)
    assert answer[3] | answer[10] << 32 == agreed
    assert answer[8] == (1 << 20) // 4096
    for ability in (p.Init.HAS_RESEND, p.Init.NO_OPEN_SUPPORT, p.Init.NO_OPENDIR_SUPPORT):
        assert ability in agreed
    assert p.Init.PASSTHROUGH not in agreed
    init(kernel, p.KERNEL_VERSION, 31, int(p.Init.ASYNC_READ), extended=False)
    assert kernel.agreed[1] == p.Init.ASYNC_READ
    without = Kernel(kernel.some, KernelOptions(0, 0, resend=False))
    init(without, p.KERNEL_VERSION, 40, everything)
    assert without.agreed == [agreed & ~p.Init.HAS_RESEND]
    for version in ((p.KERNEL_VERSION + 1, 40), (p.KERNEL_VERSION, 30)):
        assert kernel.refused(p.Op.INIT, 0, p.INIT_IN.pack(*version, 0, 0)) == errno.EPROTO


def test_struct_layouts_have_the_sizes_of_the_kernel_header() -> None:
    sizes = {
        p.IN_HEADER: 40,
        p.OUT_HEADER: 16,
        p.ATTR: 88,
        p.ENTRY: 40,
        p.ATTR_OUT: 16,
        p.INIT_OUT: 64,
        p.OPEN_OUT: 16,
        p.DIRENT: 24,
        p.STATFS: 80,
        p.INVAL_INODE: 24,
        p.INVAL_ENTRY: 16,
        p.BACKING_MAP: 16,
    }
    assert [layout.size for layout in sizes] == list(sizes.values())


NEWER = {  # than the header that Debian 12 has
    "FUSE_STATX": 52, "FUSE_NOTIFY_RESEND": 7, "FUSE_PASSTHROUGH": 1 << 37,
    "FUSE_HAS_RESEND": 1 << 39, "FOPEN_PASSTHROUGH": 1 << 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "prefix"),
    [(p.Op, "FUSE_"), (p.Notify, "FUSE_NOTIFY_"), (p.Init, "FUSE_"), (p.OpenFlag, "FOPEN_")],
)
def test_constants_match_the_kernel_header(
    ours: type[enum.IntEnum | enum.IntFlag], prefix: str
) -> None:
    header = Path("/usr/include/linux/fuse.h").read_text()
    number = r"\s*=?\s*\(?(\d+)(?:ULL)?(?: << (\d+))?"
    for one in ours:
        if NEWER.get(f"{prefix}{one.name}") == one:
            continue
        found = re.search(rf"\b{prefix}{one.name}\b{number}", header)
        assert found, one.name
        assert one == int(found[1]) << int(found[2] or 0), one.name


OURS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PenstockError)
]
OTHERS = {
    errors.ObjectChanged: errno.ESTALE, errors.StaleInode: errno.ESTALE,
    errors.ObjectNotFound: errno.ENOENT, errors.AccessDenied: errno.EACCES,
    IsADirectoryError: errno.EISDIR, MemoryError: errno.ENOMEM,
}  # fmt: skip


@pytest.mark.parametrize("kind", dict.fromkeys([*OURS, *OTHERS, ValueError]))
def test_an_error_without_its_own_errno_is_eio(
    kind: type[Exception],
) -> None:
    names_a_field = kind in (errors.SpecProblem, errors.VolumeProblem)
    words = ("spec.mounts", "what") if names_a_field else ("what",)
    assert errno_of(kind(*words)) == OTHERS.get(kind, errno.EIO)
