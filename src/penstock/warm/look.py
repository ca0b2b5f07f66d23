"""A process of its own that looks at files through the mount, for the server.

It makes the kernel hold the inodes of files that will be pushed (NOTIFY_STORE is refused for those
that nobody has looked up), and tells how much of each the page cache holds: the truth, where the
server could only remember what it once pushed. The server cannot do that by itself: a server that
waits for its own mount and is killed would wait for an answer that only its successor gives, who
starts when it is gone.

    python -IS look.py MOUNTPOINT

Reads lines from stdin: names below the mount point, each ended by NUL, in batches that end with an
empty name. Writes for each name one byte: see the constants. Ends with its stdin. Standard library
only, and nothing of Penstock: it starts in 15 ms.
"""

import ctypes
import errno
import os
import sys

MISSING, HELD, RESIDENT = b"-", b"h", b"r"

_CACHESTAT = 451  # on every architecture; Linux 6.5 and later
_PAGE = 4096
_STATE = ctypes.c_uint64 * 5  # pages in the cache, dirty, in writeback, evicted, evicted lately
_RANGE = ctypes.c_uint64 * 2  # offset, length; 0: to the end


def main() -> None:
    # No descriptor of the root is held: it would keep the mount from being unmounted.
    root = os.fsencode(sys.argv[1]) + b"/"
    libc = ctypes.CDLL(None, use_errno=True)
    everything, state = _RANGE(0, 0), _STATE()

    def look(name: bytes) -> bytes:
        try:
            file = os.open(root + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            return MISSING if error.errno in (errno.ENOENT, errno.ENOTDIR) else HELD
        try:
            size = os.fstat(file).st_size
            if libc.syscall(_CACHESTAT, file, everything, state, 0):
                return HELD  # an old kernel, or a file of another user: not known
            return RESIDENT if state[0] >= -(-size // _PAGE) else HELD
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


if __name__ == "__main__":
    main()
