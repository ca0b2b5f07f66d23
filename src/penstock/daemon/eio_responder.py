"""Answers everything with EIO: `python -m penstock.daemon.eio_responder MOUNTPOINT FUSE [JOURNAL]`.

For a mount for which no server can be started for minutes. Without it readers would wait for
ever, and could not even be killed: the kernel holds who waits for an answer. It is a process, since
only so can it be stopped in the middle of a read, before the next server is let in.
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
_UNANSWERED_ANYWAY = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)


def main() -> None:
    fuse = int(sys.argv[2])
    os.set_blocking(fuse, True)  # a server before us may have left it otherwise
    if len(sys.argv) > 3:
        for request in Journal(int(sys.argv[3])).unanswered():
            _refuse(fuse, request.unique)
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
        if opcode not in _UNANSWERED_ANYWAY:
            _refuse(fuse, unique)


def _refuse(fuse: int, unique: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # the reader was killed meanwhile
        os.write(fuse, OUT_HEADER.pack(OUT_HEADER_BYTES, -errno.EIO, unique))


if __name__ == "__main__":
    main()
