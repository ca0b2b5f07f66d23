"""Checks files through the mount, in a process of its own: which pages the page cache holds.

The process makes the kernel hold the inodes of files that will be pushed (NOTIFY_STORE is rejected
for an inode that nobody has looked up), and reports how much of each file the page cache holds; the
server itself could only remember what it once pushed. The server cannot do this in its own process:
if it were killed while it waits for its own mount, only its successor could answer, which starts
when it is gone.

    python -IS residency.py MOUNTPOINT [bytes]

It reads names below the mount point from stdin, each ended by NUL, in batches that end with an
empty name. For each name it writes one byte (see the constants) or, with `bytes`, how many bytes of
the file are in the page cache, as a signed number of eight bytes. It ends with its stdin. It uses
the standard library only, and nothing of Penstock, so it starts in 15 ms.
"""

import contextlib
import ctypes
import errno
import os
import sys

MISSING, HELD, RESIDENT = b"-", b"h", b"r"
NUMBER_BYTES = 8

_CACHESTAT = 451  # on every architecture; Linux 6.5 and later
_PAGE = os.sysconf("SC_PAGE_SIZE")  # 64 KiB on some arm64 machines
_STATE = ctypes.c_uint64 * 5  # pages in the cache, dirty, in writeback, evicted, evicted lately
_RANGE = ctypes.c_uint64 * 2  # offset, length; 0: to the end
_PROT_READ, _MAP_SHARED = 1, 1
_NO_ADDRESS = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def main() -> None:
    # Holds no descriptor of the root, which would prevent an unmount.
    root = os.fsencode(sys.argv[1]) + b"/"
    answer_for = count_bytes if "bytes" in sys.argv[2:] else check
    early = b""
    answer = bytearray()
    while received := os.read(0, 1 << 16):
        names = (early + received).split(b"\0")
        early = names.pop()
        for name in names:
            if name:
                answer += answer_for(root + name)
            else:
                os.write(1, answer)
                answer.clear()


def check(path: bytes) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return MISSING if error.errno in (errno.ENOENT, errno.ENOTDIR) else HELD
    try:
        status = os.fstat(file)
        pages = pages_by_cachestat(file)
        # For files of other users mincore reports every page as resident.
        if pages is None and os.geteuid() in (0, status.st_uid):
            pages = pages_by_mincore(file, status.st_size)
        return RESIDENT if pages is not None and pages >= -(-status.st_size // _PAGE) else HELD
    finally:
        os.close(file)


def count_bytes(path: bytes) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return _number(0 if error.errno in (errno.ENOENT, errno.ENOTDIR) else -1)
    try:
        return _number(resident_bytes(file))
    finally:
        os.close(file)


def resident_bytes(file: int) -> int:
    """Return how many bytes of an open file the page cache holds; -1 if the kernel does not report
    it: an old kernel, or another user's file."""
    size = os.fstat(file).st_size
    pages = pages_by_cachestat(file)
    if pages is None:
        return -1
    if pages * _PAGE >= size:
        return size
    # Not all of it: is the last page, which may be partial, among them?
    last = size // _PAGE * _PAGE
    has_last = size % _PAGE and pages_by_cachestat(file, last, _PAGE)
    return pages * _PAGE - (_PAGE - size % _PAGE if has_last else 0)


def pages_by_cachestat(file: int, offset: int = 0, length: int = 0) -> int | None:
    """Return how many pages of a file the page cache holds; None if the kernel does not report
    it."""
    state = _STATE()
    failed = _libc.syscall(_CACHESTAT, file, _RANGE(offset, length), state, 0)
    return None if failed else state[0]


def pages_by_mincore(file: int, size_bytes: int) -> int | None:
    """The same for kernels before 6.5. Without it, a plan would fetch everything again in every
    epoch."""
    if not size_bytes:
        return 0
    address = _libc.mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, file, 0)
    if address == _NO_ADDRESS:
        return None
    held = ctypes.create_string_buffer(-(-size_bytes // _PAGE))
    failed = _libc.mincore(address, size_bytes, held)
    _libc.munmap(address, size_bytes)
    return None if failed else held.raw.count(b"\1")


def _number(value: int) -> bytes:
    return value.to_bytes(NUMBER_BYTES, "little", signed=True)


if __name__ == "__main__":
    # The server is gone, and nobody waits for the answer.
    with contextlib.suppress(BrokenPipeError):
        main()
