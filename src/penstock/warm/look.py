"""A process of its own that looks at files through the mount, for the server.

It makes the kernel hold the inodes of files that will be pushed (NOTIFY_STORE is refused for those
that nobody has looked up), and tells how much of each the page cache holds: the truth, where the
server could only remember what it once pushed. The server cannot do that by itself: a server that
waits for its own mount and is killed would wait for an answer that only its successor gives, who
starts when it is gone.

    python -IS look.py MOUNTPOINT [bytes]

Reads lines from stdin: names below the mount point, each ended by NUL, in batches that end with an
empty name. Writes for each name one byte: see the constants; or, with `bytes`, how many bytes of it
are in the page cache, a signed number of eight bytes. Ends with its stdin. Standard library only,
and nothing of Penstock: it starts in 15 ms.
"""

import ctypes
import errno
import os
import sys

MISSING, HELD, RESIDENT = b"-", b"h", b"r"
NUMBER_BYTES = 8

_CACHESTAT = 451  # on every architecture; Linux 6.5 and later
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATE = ctypes.c_uint64 * 5  # pages in the cache, dirty, in writeback, evicted, evicted lately
_RANGE = ctypes.c_uint64 * 2  # offset, length; 0: to the end
_LIBC = ctypes.CDLL(None, use_errno=True)


def resident_bytes(file: int) -> int:
    """How many bytes of an open file the page cache holds; -1 if the kernel does not say: an old
    one, or another user's file."""
    size = os.fstat(file).st_size
    pages = _pages(file, 0, 0)
    if pages < 0 or pages * _PAGE < size:
        # Not all of it; does that include the last page, of which only a part is the file's?
        last = size // _PAGE * _PAGE
        short = _PAGE - size % _PAGE if size % _PAGE and _pages(file, last, _PAGE) > 0 else 0
        return pages * _PAGE - short if pages >= 0 else -1
    return size


def _pages(file: int, offset: int, length: int) -> int:
    state = _STATE()
    if _LIBC.syscall(_CACHESTAT, file, _RANGE(offset, length), state, 0):
        return -1
    return state[0]


def main() -> None:
    # No descriptor of the root is held: it would keep the mount from being unmounted.
    root = os.fsencode(sys.argv[1]) + b"/"
    count = "bytes" in sys.argv[2:]

    def look(name: bytes) -> bytes:
        try:
            file = os.open(root + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
            if count:
                return _number(0 if gone else -1)
            return MISSING if gone else HELD
        try:
            if count:
                return _number(resident_bytes(file))
            pages = _pages(file, 0, 0)  # below 0: not known
            return RESIDENT if pages * _PAGE >= os.fstat(file).st_size and pages >= 0 else HELD
        finally:
            os.close(file)

    early = b""
    answer = bytearray()
    while received := os.read(0, 1 << 16):
        names = (early + received).split(b"\0")
        early = names.pop()
        for name in names:
            if name:
                answer += look(name)
            else:
                os.write(1, answer)
                answer.clear()


def _number(value: int) -> bytes:
    return value.to_bytes(NUMBER_BYTES, "little", signed=True)


if __name__ == "__main__":
    main()
