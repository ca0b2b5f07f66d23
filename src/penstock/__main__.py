"""`penstock`, and `python -m penstock`."""

import os
import signal
from types import FrameType


def main() -> None:
    # The kernel drops a signal that the first process of a container does not handle: a pod that
    # is deleted while it starts would stay until it is killed, 60 s later.
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    # Ctrl-C while modules are imported ends the process silently, as it ends any program.
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.app import main as run

    if catches:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
