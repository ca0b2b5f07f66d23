"""Fuzzing without atheris: hypothesis draws seeds, and `mutation` makes inputs of them.

It sees no branches, so it finds less in the same time. What it prints and leaves behind is what
libFuzzer does: `__main__` reads either. One process, one thread.
"""

import faulthandler
import hashlib
import os
import resource
import sys
import time
import traceback
from itertools import islice
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutations
from tests.fuzz.target import Check, Target

WHY = "atheris is not installed (it has wheels for x86-64, up to Python 3.13)"
_INPUTS_A_SEED = 100
_SEEDS_A_ROUND = 50
_HANGS_AFTER_S = 20
_MOST_MEMORY_BYTES = 1 << 30


class _Ended(BaseException):
    """No Exception: hypothesis would take it for a failure, and run the example again."""


class _Found(_Ended):
    """An input that is a finding."""


class _Over(_Ended):
    """The time is up."""


def run(target: Target, seconds: float, folder: Path) -> None:
    """Raises SystemExit with 0, or with 77 after a finding."""
    until_s = time.monotonic() + seconds
    executed = 0
    folder.mkdir(parents=True, exist_ok=True)

    def execute(check: Check, data: bytes) -> None:
        nonlocal executed
        if time.monotonic() > until_s:
            raise _Over
        executed += 1
        hanging = folder / "hanging"
        hanging.write_bytes(data)  # known also if it hangs, or ends the process
        faulthandler.dump_traceback_later(_HANGS_AFTER_S, exit=True)
        try:
            check(data)
        except BaseException as error:
            faulthandler.cancel_dump_traceback_later()
            traceback.print_exc()
            raise _Found(_kept(folder, "crash", data)) from error
        faulthandler.cancel_dump_traceback_later()
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > _MOST_MEMORY_BYTES:
            raise _Found(_kept(folder, "oom", data))

    code = 0
    with target.open(Path(os.environ["TMPDIR"])) as check:
        try:
            once = Path(__file__).with_name("regressions") / target.name
            for file in sorted(once.iterdir()) if once.is_dir() else ():
                execute(check, file.read_bytes())
            while time.monotonic() < until_s:
                _search(target, lambda data: execute(check, data))
            raise _Over
        except _Over:
            (folder / "hanging").unlink(missing_ok=True)
        except _Found:
            code = 77  # as libFuzzer's
    print(f"stat::number_of_executed_units: {executed}", file=sys.stderr)
    raise SystemExit(code)


def _search(target: Target, execute: Check) -> None:
    """One round of hypothesis. Its own examples, which are seeds, are not shrunk: an input is."""

    @given(st.integers(0, 2**64 - 1))
    @settings(
        max_examples=_SEEDS_A_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def some(seed: int) -> None:
        made = mutations(target.seeds, target.words, seed)
        for data in islice(made, len(target.seeds), len(target.seeds) + _INPUTS_A_SEED):
            execute(data)

    some()


def _kept(folder: Path, kind: str, data: bytes) -> str:
    path = folder / f"{kind}-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
    path.write_bytes(data)
    (folder / "hanging").unlink(missing_ok=True)
    print(f"Test unit written to {path}", file=sys.stderr)
    return str(path)
