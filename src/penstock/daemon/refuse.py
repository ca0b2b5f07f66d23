"""Answer all requests with EIO: `-m penstock.daemon.refuse MOUNTPOINT FUSE [JOURNAL]`.

For a mount without a server for minutes. Otherwise readers would wait forever, and could not even
be killed, since the kernel keeps a process that waits for an answer. It is a process of its own,
because only so can it be stopped in the middle of a read before the next server starts.
"""

import contextlib
import errno
import os
import sys

from penstock.fuse.journal import Journal
from penstock.fuse.protocol import (
    IN_HEADER,
    OUT_HEADER,
    OUT_HEADER_BYTES,
    Notify,
    Op,
)

_REQUEST_BYTES = 64 * 1024
_WITHOUT_ANSWER = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)


def main() -> None:
    fuse = int(sys.argv[2])
    os.set_blocking(fuse, True)  # the server may have left it non-blocking
    if len(sys.argv) > 3:
        for request in Journal(int(sys.argv[3])).unanswered():
            _answer_eio(fuse, request.unique)
    else:
        os.write(fuse, OUT_HEADER.pack(OUT_HEADER_BYTES, Notify.RESEND, 0))
    while True:
        try:
            request = os.read(fuse, _REQUEST_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # unmounted
            continue
        _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
        if opcode not in _WITHOUT_ANSWER:
            _answer_eio(fuse, unique)


def _answer_eio(fuse: int, unique: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # the reader was killed in the meantime
        os.write(fuse, OUT_HEADER.pack(OUT_HEADER_BYTES, -errno.EIO, unique))


if __name__ == "__main__":
    main()
