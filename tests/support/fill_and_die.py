"""Forks a process that fills the cache directory in argv[1], for each line that it is sent. It
waits for a second line, so that a tracer can be put on it first. Prints its number, then how it
ended. A process of its own, because a fork wants no other threads."""

import os
import sys
from pathlib import Path

from tests.support.cache_fill import fill_in_full


def main() -> None:
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.read(sys.stdin.fileno(), 1)
                fill_in_full(Path(sys.argv[1]))
                status = 0
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
