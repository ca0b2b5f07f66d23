"""Every target with a few hundred seeded inputs, and with all that were findings once."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz import blind
from tests.fuzz.mutation import mutations
from tests.fuzz.target import Check, Target, watching
from tests.fuzz.targets import TARGETS

REGRESSIONS = Path(__file__).with_name("regressions")
SEED = 20_261_118


@pytest.mark.timeout(900)  # nothing but CPU: 200 s where ten processes share a core
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_each_target_holds_for_mutations_of_valid_inputs(target: Target, tmp_path: Path) -> None:
    inputs = list(islice(mutations(target.seeds, target.words, SEED), target.smoke_inputs))
    assert len(set(inputs)) > target.smoke_inputs / 2
    with target.open(tmp_path) as check:
        for data in inputs:
            check(data)


@pytest.mark.parametrize("name", sorted(path.name for path in REGRESSIONS.iterdir()))
def test_each_target_holds_for_earlier_findings(name: str, tmp_path: Path) -> None:
    inputs = sorted((REGRESSIONS / name).iterdir())
    assert inputs
    with TARGETS[name].open(tmp_path) as check:
        for file in inputs:
            check(file.read_bytes())


@pytest.mark.parametrize(
    ("name", "file", "at"),
    [
        ("index", "saved/index.sqlite", b"TABLE objects"),
        ("catalog", "pristine.sqlite", b"TABLE me"),
    ],
)
def test_a_schema_that_is_not_text_is_ordinary_damage(
    name: str, file: str, at: bytes, tmp_path: Path
) -> None:
    """sqlite3 fails to decode what SQLite says of it, and raises no error of a database."""
    with TARGETS[name].open(tmp_path) as check:
        place = (tmp_path / file).read_bytes().index(at)
        assert place > 100, "behind the header"
        check(place.to_bytes(4, "little") + b"\xff")


def test_a_bug_in_a_thread_or_in_the_log_is_a_finding() -> None:
    """Without it most targets could not fail: sessions and servers catch everything."""

    def fail() -> None:
        raise ZeroDivisionError

    with watching() as bugs:
        bugs.check()
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            bugs.check()
        logging.getLogger("penstock.x").error("a bug", exc_info=KeyError("x"))
        with pytest.raises(AssertionError, match="KeyError"):
            bugs.check()
        bugs.check()


# -- without atheris ------------------------------------------------------------------------


@contextmanager
def no_x(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        assert b"x" not in data

    yield check


# A finding ends the run at once, so its time is only a bound: the first example of hypothesis
# takes over a second on a busy machine.
@pytest.mark.parametrize(("words", "seconds", "code"), [([b"x"], 60, 77), ([], 0.3, 0)])
def test_random_mutations_find_a_bug_and_keep_the_input(
    words: list[bytes],
    seconds: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(blind, "mutations", lambda seeds, words, _: iter([*seeds, *words]))
    target = Target("none", "there is no x", no_x, [b"seed"], words)
    with pytest.raises(SystemExit) as ended:
        blind.run(target, seconds, tmp_path / "out")
    assert ended.value.code == code
    output = capfd.readouterr().err
    assert "stat::number_of_executed_units" in output
    kept = list((tmp_path / "out").iterdir())
    assert [file.read_bytes() for file in kept] == words
    assert all(f"Test unit written to {file}" in output for file in kept)


def test_without_atheris_one_line_says_so_and_targets_run_in_parallel(
    tmp_path: Path,
) -> None:
    hidden = "import sys; sys.modules['atheris'] = None"  # an ImportError, as if it were not there
    (tmp_path / "sitecustomize.py").write_text(hidden)
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz",
            "s3-listing",
            "web-index",
            "--seconds",
            "1",
            "--jobs",
            "2",
            "--out",
            tmp_path / "out",
        ],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == f"{blind.WHY}: random changes of valid inputs instead\n"
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["target", "executions", "per", "second", "findings"]
    assert [(row[0], row[3]) for row in rows] == [("s3-listing", "0"), ("web-index", "0")]
    assert all(int(row[1].replace(",", "")) > 10 for row in rows), rows
