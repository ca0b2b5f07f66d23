"""python -m tests.fuzz [TARGET ...] [--seconds 60] [--jobs N] [--out fuzz-results]

Exit 0 if there was no finding. `--input FILE` runs one input of one target again.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import blind
from tests.fuzz.targets import TARGETS

_KEPT = re.compile(r"Test unit written to (\S+/(?:crash|timeout|oom|leak)-\w+)")
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_STOP_AFTER_S = 120  # beyond its time: a process that does not end is a finding, too


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    executions: int
    findings: tuple[str, ...]


def fuzz(name: str, seconds: int, out: Path) -> Outcome:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "tests.fuzz.engine", name, str(seconds), str(folder)]
    log = folder / "log"
    with open(log, "w") as file, tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as place:
        try:
            code = subprocess.run(
                words,
                stdout=file,
                stderr=file,
                timeout=seconds + _STOP_AFTER_S,
                check=False,
                env=os.environ | {"TMPDIR": place},
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    text = log.read_text(errors="replace")
    hanging = folder / "hanging"  # of `blind`: libFuzzer keeps such an input by itself
    if hanging.exists():
        kept = hanging.rename(folder / "timeout-input")
        text += f"Test unit written to {kept}"
    found = [f"python -m tests.fuzz {name} --input {path}" for path in _KEPT.findall(text)]
    if code != 0 and not found:
        found = [f"exit code {code}, and no input: see {log}"]
    executed = _EXECUTED.search(text)
    return Outcome(name, int(executed[1]) if executed else 0, tuple(found))


def repeat(name: str, file: Path) -> None:
    """Raises what the input makes the target raise."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder,
        TARGETS[name].open(Path(folder)) as check,
    ):
        check(file.read_bytes())
    print(f"{name}: nothing found in {file}")


def _has_atheris() -> bool:
    try:
        return importlib.util.find_spec("atheris") is not None
    except ValueError:  # hidden by a test
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="targets at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-results"))
    parser.add_argument("--input", type=Path, help="one input, run again")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.input is not None:
        if len(given.targets) != 1:
            parser.error("--input is for one target")
        repeat(given.targets[0], given.input)
        return 0
    if not _has_atheris():
        print(f"{blind.WHY}: random changes of valid inputs instead", file=sys.stderr)
    print(f"{'target':<16}{'executions':>12}{'per second':>12}{'findings':>10}", flush=True)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(max(1, given.jobs)) as pool:  # each waits for a process
        running = [
            pool.submit(fuzz, name, given.seconds, given.out) for name in given.targets or TARGETS
        ]
        for one in (future.result() for future in running):
            outcomes.append(one)
            rate = one.executions // max(1, given.seconds)
            row = f"{one.name:<16}{one.executions:>12,}{rate:>12,}{len(one.findings):>10}"
            print(row, flush=True)
    for one in outcomes:
        for finding in one.findings:
            print(f"{one.name}: {finding}")
    return int(any(one.findings for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
