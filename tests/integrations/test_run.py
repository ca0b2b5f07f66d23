"""`penstock run`: the script's loaders publish their order, and nothing else about it changes."""

import ast
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs.loader_waits import read_waits
from tests.support.lazy import Lazy

pytestmark = [
    pytest.mark.timeout(900),  # on a machine with ten times more to do than it has cores
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's
]
loader_order = Lazy("tests.support.loader_order")
ROOT = Path(__file__).parent.parent.parent
ORDER, SOURCE = ROOT / "tests/support/loader_order.py", ROOT / "src"
# With workers, these differ in how indices come to the loader.
WITH_WORKERS = ("shuffled", "with a generator", "without batches", "endless", "torchdata's")


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "run", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=250, check=False, **options
    )


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run("--", sys.executable, *arguments)


@dataclass
class Compared:
    """What the script printed under `penstock run`. It read the same without."""

    results: dict[str, Any]
    said: str

    def epochs(self, case: str) -> list[list[int]]:
        return self.results[case]["read"]["epochs"]

    def plans(self, case: str) -> list[dict[str, Any]]:
        return self.results[case]["plans"]


def compare(*turns: tuple[int, str, tuple[str, ...]]) -> list[Compared]:
    """One for each turn, of (workers, how they are started, cases)."""
    hooked = script(ORDER, json.dumps(turns))
    assert hooked.returncode == 0, hooked.stderr
    output = hooked.stderr.split(f"{loader_order.TURN_ENDS}\n")[:-1]
    compared: list[Compared] = []
    for turn, results, lines in zip(turns, json.loads(hooked.stdout), output, strict=True):
        # In this process, which is not run by us and has imported torch.
        plain = json.loads(json.dumps(loader_order.take_turn([], *turn)))
        for case in results:
            assert results[case]["read"] == plain[case]["read"], case
        compared.append(Compared(results, lines))
    return compared


# One script for all tests, since the import of torch takes 3 s.
@pytest.fixture(scope="module")
def all_compared() -> list[Compared]:
    return compare(
        (0, "fork", (*loader_order.CASES, *loader_order.NOT_FORESEEN)),
        (2, "fork", (*WITH_WORKERS, "draws as it goes")),
        (1, "spawn", (loader_order.CHANGING,)),
        (1, "fork", (loader_order.DEADLY,)),
    )


def test_a_script_reads_and_draws_the_same_values_and_its_order_is_published(
    all_compared: list[Compared],
) -> None:
    without_workers = all_compared[0]
    for case in loader_order.CASES:
        (plan,) = without_workers.plans(case)
        read = list(chain(*without_workers.epochs(case)))
        assert plan["order"] == [index % loader_order.FILES for index in read], case
        assert plan["closed"]
        assert plan["done"] < len(plan["order"])
    for case in ("in order", "with a generator", "distributed", "its own generator"):
        (plan,) = without_workers.plans(case)
        # The second and the third epoch were announced, and rightly; the fourth never came.
        assert plan["restarts"] == 1, case
        assert plan["crossed"] == len(without_workers.epochs(case)[0]), case
    for case in ("shuffled", "shuffled twice"):
        (plan,) = without_workers.plans(case)
        assert (plan["restarts"], plan["crossed"]) == (0, 0), case


def test_an_unpredictable_order_is_reported_once_and_the_script_runs_as_before(
    all_compared: list[Compared],
) -> None:
    without_workers = all_compared[0]
    lines = [line for line in without_workers.said.splitlines() if line.startswith("penstock: ")]
    assert len(lines) == 4
    assert all("; hint: " in line for line in lines)
    assert "was predicted wrongly" in lines[0]
    assert "cannot be predicted" in lines[1]
    assert "reads the data set" in lines[2]
    assert "cannot be copied" in lines[3]
    plans = [plan for case in loader_order.NOT_FORESEEN for plan in without_workers.plans(case)]
    assert [plan["closed"] for plan in plans] == [True]


def test_workers_start_after_their_plan_is_there_and_read_the_same_samples(
    all_compared: list[Compared],
) -> None:
    compared = all_compared[1]
    assert compared.said.count("penstock: ") == 2
    for case in WITH_WORKERS:
        (plan,) = compared.plans(case)
        assert plan["before_workers"], case
        handed_out = iter(plan["order"])
        for epoch in compared.epochs(case):
            read = [index % loader_order.FILES for index in epoch]
            assert [next(handed_out) for _ in epoch] == read, case
            # Of one that was abandoned, four more batches were with the workers.
            ahead = {26 * 4: 4 * 4, 26: 4}.get(len(epoch), 0)
            assert len(list(islice(handed_out, ahead))) == ahead, case
        assert not list(handed_out), case


def test_an_order_that_changes_while_workers_start_is_published_again(
    all_compared: list[Compared],
) -> None:
    compared = all_compared[2]
    (plan,) = compared.plans(loader_order.CHANGING)
    assert compared.said == ""
    assert plan["before_workers"]
    assert plan["restarts"] == 1  # workers stay, and so does the order of later epochs
    assert plan["order"] == list(chain(*compared.epochs(loader_order.CHANGING)))
    # A worker that dies is the script's own error.
    compared = all_compared[3]
    assert compared.results[loader_order.DEADLY]["read"] == {"error": "DataLoader worker "}
    assert [plan["closed"] for plan in compared.plans(loader_order.DEADLY)] == [True]
    assert compared.said == ""


# Two scripts in one process, again because of the import of torch.
SAYS = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Stream(IterableDataset):
    def __iter__(self): return iter(range(4))

class OnDisk(Dataset):
    paths = ["/nowhere/a", "/nowhere/b"]
    def __len__(self): return 2
    def __getitem__(self, index): return index

for dataset in (Stream(), TensorDataset(torch.arange(4)), OnDisk()):
    for _ in range(2):
        print([int(batch[0]) for batch in DataLoader(dataset)])
"""
MANY = """
import gc
from loader_order import DataLoader, Files
from recorded import record
plans, files = record(), Files()
for _ in range(3):
    loader = DataLoader(files, batch_size=8, shuffle=True)
    drawn = [int(index) for batch in loader for index in batch]
    del loader
(one,) = plans
assert one.order[-len(drawn) :] == drawn and len(one.order) == 3 * len(drawn)
two, pairs = DataLoader(files, batch_size=8), 0
for first in two:
    for second in two:  # a loop in a loop: the inner one is planned
        pairs += 1
other = DataLoader(files, batch_size=8)
iter(other).__next__()
assert len(plans) == 2  # two loaders that live at once have two
del two, other, files
print(pairs, [plan.closed for plan in plans])
"""


def test_loaders_report_why_they_have_no_plan_and_a_new_one_reuses_a_freed_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SAYS + MANY)
    path = f"{ORDER.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PENSTOCK_LOG", "info")
    result = script(tmp_path / "train.py")
    assert result.returncode == 0, result.stderr
    stdout, stderr = result.stdout.splitlines(), result.stderr.splitlines()
    assert stdout == ["[0, 1, 2, 3]"] * 4 + ["[0, 1]"] * 2 + ["25 [True, True]"]
    assert [line.split("; hint: ")[0] for line in stderr] == [
        "penstock: no plan for Stream: only its workers know the order of an IterableDataset",
        "penstock: no plan for TensorDataset: TensorDataset does not tell which files its samples "
        "are",
        "penstock: no plan for OnDisk: no Penstock mount holds these files: /nowhere/a and 1 more",
        "penstock: Files: 40 samples planned",
    ]


def test_arguments_streams_exit_codes_and_signals_pass_through() -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(7)"
    result = run("--", sys.executable, "-c", code, "--help", "-x", input="in")
    assert (result.returncode, result.stdout, result.stderr) == (7, "['--help', '-x'] in\n", "")
    assert run("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    ignored = int(run("grep", "SigIgn", "/proc/self/status").stdout.split()[1], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1, "a broken pipe ends it as it would without us"


def test_a_command_that_cannot_run_is_reported() -> None:
    for command, code, message in (
        ("--", 2, "Missing argument 'COMMAND...'"),
        ("no-such-command", 127, "penstock: no-such-command: no such command"),
        ("/etc", 126, "penstock: /etc: Permission denied"),
    ):
        result = run(command)
        assert result.returncode == code
        assert message in result.stderr
        assert "hint: " in result.stderr


LOOKS = """
import json, sys
print(json.dumps({
    "path": sys.path[1:], "modules": sorted(sys.modules), "custom": getattr(sys, "custom", None),
    "sitecustomize": "sitecustomize" in sys.modules,
}))
"""


@pytest.mark.parametrize("custom", [None, "the user's own"])
def test_the_interpreter_is_configured_as_without_penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, custom: str | None
) -> None:
    (tmp_path / "look.py").write_text(LOOKS)
    if custom is not None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "sitecustomize.py").write_text(f"import sys; sys.custom = {custom!r}")
        places = [str(tmp_path / "own"), os.environ.get("PYTHONPATH", str(SOURCE))]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    plain = subprocess.check_output([sys.executable, tmp_path / "look.py"])
    before, after = json.loads(plain), json.loads(script(tmp_path / "look.py").stdout)
    added = set(after.pop("modules")) - set(before.pop("modules"))
    assert after == before
    assert after["custom"] == custom
    assert not [name for name in added if name.startswith(("penstock", "torch"))]


def test_another_interpreter_can_import_penstock_and_none_of_its_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    other = os.path.realpath(sys.executable)  # that which the virtual environment was made from
    code = (
        "import sys, importlib.util, penstock.integrations.loader_hook\n"
        "print(penstock.__file__, importlib.util.find_spec('obstore'), "
        f"{str(SOURCE)!r} in sys.path)"
    )
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from penstock.cli.app import run"
    result = subprocess.run(
        [sys.executable, "-c", f"{start}; sys.exit(run(sys.argv[1:]))", "run", other, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == f"{SOURCE / 'penstock' / '__init__.py'} None False\n", result.stderr
    # The first file that runs needs no newer Python than it says.
    text = (SOURCE / "penstock" / "integrations" / "hook" / "sitecustomize.py").read_text()
    assert "this file must run on Python 3.9" in text
    ast.parse(text, feature_version=(3, 9))


def test_an_unknown_loader_is_left_alone_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "torch" / "utils" / "data"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "dataloader.py").write_text("class DataLoader: pass\n")
    places = [str(tmp_path), os.environ.get("PYTHONPATH", str(SOURCE))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    child = "from torch.utils.data.dataloader import DataLoader; print(DataLoader.__name__)"
    (tmp_path / "train.py").write_text(
        f"{child}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    )
    result = script(tmp_path / "train.py")
    assert sorted(result.stdout.split()) == ["DataLoader", "DataLoader"]
    assert result.stderr.startswith("penstock: DataLoader is not hooked: ")
    assert result.stderr.count("\n") == 1


COUNTING = """
import sys
from torch.utils.data import DataLoader, Sampler

class Counting(Sampler):
    {attribute}
    def __iter__(self):
        with open(sys.argv[1], "a") as file:
            file.write("begun\\n")
        yield from range(4)

    def __len__(self):
        return 4

class Files(list):
    {files}

for workers in (0, 1):
    loader = DataLoader(Files([10, 20, 30, 40]), sampler=Counting(), num_workers=workers)
    for _ in range(2):
        assert [int(one) for one in loader] == [10, 20, 30, 40]
"""


def test_a_sampler_that_declines_a_plan_is_iterated_by_the_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = tmp_path / "waits"
    waits.mkdir()
    monkeypatch.setenv("PENSTOCK_JOB_WAITS", str(waits))
    lines: list[int] = []
    files = "files = [f'/tmp/{number}' for number in range(4)]"
    for number, (attribute, has_files) in enumerate(
        [("penstock_plan = False", files), ("pass", "pass"), ("pass", files)]
    ):
        path, begun = tmp_path / "train.py", tmp_path / str(number)
        path.write_text(COUNTING.format(attribute=attribute, files=has_files))
        result = script(path, begun)
        assert result.returncode == 0, result.stderr
        lines.append(len(begun.read_text().splitlines()))
    # Nor is one whose data set has no files; without a reason it is.
    assert lines[:2] == [4, 4]
    assert lines[2] > 4
    # As in a job with a plan, each process has recorded how long its loops waited.
    recorded = read_waits(waits)
    assert recorded is not None
    assert (recorded.processes, recorded.batches) == (3, 3 * 4 * 4)
    assert 0 < recorded.waited_s < recorded.elapsed_s
