"""What `penstock run` says to the user: one line on stderr, once. Any thread."""

import os
import sys
from contextlib import suppress

_said: set[str] = set()


def say(what: str, hint: str | None = None) -> None:
    """One line on stderr, once; of several ranks on a machine the first speaks for all."""
    line = f"penstock: {what}" + (f"; hint: {hint}" if hint else "")
    if line in _said or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _said.add(line)
    with suppress(OSError, ValueError):  # a script may have closed it
        print(line, file=sys.stderr, flush=True)


def tell(what: str) -> None:
    """For those who ask for it."""
    if os.environ.get("PENSTOCK_LOG", "").upper() in ("INFO", "DEBUG"):
        say(what)
