"""The process of the loop: `python -Pm penstock.reconcile.main LOCK`. Ends when all is done."""

import logging
import os
import sys

from penstock.environment import take_over
from penstock.reconcile.loop import Loop
from penstock.reconcile.nudge import Place
from penstock.reconcile.state import State
from penstock.store.secrets import LOG_FORMAT, RedactingFormatter


def main() -> int:
    os.environ.update(take_over())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "INFO").upper())
    state = State()
    place = Place(state.folder)
    place.inherit(int(sys.argv[1]))
    Loop(state, place, stay=False).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
