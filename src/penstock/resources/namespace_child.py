"""The program between `run_with_data` and the command: makes the namespace, then becomes it.

`python -m penstock.resources.namespace_child TOLD REPORT`: two descriptors, of what to do and of
where to say why it could not be done. Nothing is said when it could.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

from penstock.resources.namespace_mounts import Cannot, bind_all, enter

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> NoReturn:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        told: dict[str, Any] = json.load(file)
    report = int(sys.argv[2])
    os.set_inheritable(report, False)
    try:
        _become(told)
    except Cannot as error:
        said = {"what": str(error), "hint": error.hint}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        said = {"what": f"{where}{error.strerror}", "hint": None}
    os.write(report, json.dumps(said).encode())
    os._exit(126)


def _become(told: dict[str, Any]) -> NoReturn:
    enter()
    bind_all(told["binds"])
    os.chdir(told["cwd"] or "/")
    die_with(told["parent"])
    # Python ignores these, and what is ignored stays so in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    argv: list[str] = told["argv"]
    try:
        os.execvpe(argv[0], argv, told["env"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Cannot(
            f"{argv[0]}: no such command", "images are not used here: install it on this machine"
        ) from error


def die_with(parent: int) -> None:
    # Last: a change of who one is takes it back.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(126)


if __name__ == "__main__":
    main()
