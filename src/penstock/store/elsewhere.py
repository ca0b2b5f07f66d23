"""Chunks that are made in a thread of their own, a few ahead of who takes them.

obstore takes an upload's chunks within its own runtime. Whoever makes them with obstore, as a copy
from one bucket to another does, would start a second runtime inside of the first, which panics.
"""

import queue
import threading
from collections.abc import Generator
from contextlib import suppress

from typing_extensions import Buffer

from penstock.store import Chunks

_AHEAD = 2


def made_elsewhere(chunks: Chunks) -> Generator[Buffer]:
    """What making them raises comes out here. Closed early, no more are made."""
    made: queue.Queue[Buffer | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(one: Buffer | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                made.put(one, timeout=0.1)
                return

    def make() -> None:
        try:
            for chunk in chunks():
                put(chunk)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by who takes them
            put(error)
        else:
            put(None)

    maker = threading.Thread(target=make, name="chunks", daemon=True)
    maker.start()
    try:
        while (one := made.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
        maker.join()
