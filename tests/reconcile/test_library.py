"""`import penstock`: each of its verbs, as a notebook uses them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.errors import NoSuchResource, PenstockError, UsageError
from penstock.reconcile.state import State
from tests.support.datasets import of_folder, ours
from tests.support.trees import write_tree


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A data set and its runtime, as YAML."""
    source = tmp_path / "source"
    write_tree(source, {"train/a": b"12345", "b": b"678"})
    return yaml.safe_dump_all([of_folder("small", source), ours("small", tmp_path / "cache")])


def test_every_verb_works_from_apply_to_delete(declared: State, text: str) -> None:
    tried = penstock.apply(text, dry_run=True)
    assert [one.outcome for one in tried] == ["created", "created"]
    assert penstock.get_all() == []
    reported: list[str] = []
    penstock.apply(text, progress=lambda pairs: reported.extend(one.label for one in pairs))
    assert set(reported) == {"default/small"}

    small = penstock.dataset("small")
    assert repr(small) == "<Dataset default/small Bound>"
    assert small.path is not None
    assert (small.path / "train" / "a").read_bytes() == b"12345"
    assert (small.files, small.total_bytes, small.capacity_bytes) == (2, 8, 64 << 20)
    assert json.loads(json.dumps(small.as_dict()))["status"]["phase"] == "Bound"
    assert [one["type"] for one in small.conditions] == ["Ready"]

    load = small.load("/train")
    seen: list[str] = []
    assert load.wait(60, progress=lambda one: seen.append(one.phase)).phase == "Complete"
    assert seen[-1] == "Complete"
    assert load.progress["bytes"] == 5
    assert small.refresh().cached_bytes == 5
    assert isinstance(penstock.get("dataload", load.name), penstock.Operation)
    kinds = {type(one).__name__ for one in penstock.get_all()}
    assert kinds == {"Dataset", "Declared", "Operation"}
    assert penstock.get_all("datasets", namespace="elsewhere") == []
    assert "Bound" in penstock.describe("dataset", "small")
    assert penstock.up() == []
    load.delete()
    penstock.delete("dataset", "small")
    assert not small.path.exists()
    with pytest.raises(NoSuchResource):
        small.refresh()


def test_mistakes_are_errors_with_hints(declared: State, tmp_path: Path) -> None:
    assert penstock.apply([]) == []
    for given in ({"kind": "Dataset"}, "", "nothing\n", tmp_path):
        with pytest.raises(UsageError) as refused:
            penstock.apply(given)
        assert refused.value.hint
    with pytest.raises(PenstockError, match="dataset lost: "):
        penstock.apply([of_folder("lost", tmp_path / "nowhere"), ours("lost")])
    lost = penstock.dataset("lost")
    assert (lost.phase, lost.path, lost.files, lost.cached_bytes) == ("Failed", None, 0, 0)
    with pytest.raises(PenstockError, match="dataset lost is Failed") as failed:
        lost.load()
    assert failed.value.hint == "penstock doctor lost"


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "statements",
    [
        "import penstock; penstock.get_all('datasets')",
        "from penstock.cli.app import run; run(['get', 'datasets'])",
    ],
)
def test_neither_import_nor_status_loads_models_or_stores(statements: str) -> None:
    heavy = "{'pydantic', 'obstore', 'botocore', 'yaml'}"
    assert run(f"{statements}; import sys; print({heavy} & set(sys.modules))") == "set()\n"


def test_a_notebook_has_threads_and_no_zombies(declared: State, text: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(text)
    program = f"""
import os, threading, penstock
penstock.apply({str(file)!r})
small = penstock.dataset("small")
threads = [threading.Thread(target=small.load, kwargs={{"wait": True}}) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(3): penstock.get_all()
penstock.up()
print(len(penstock.get_all("dataloads")), small.refresh().cached_bytes)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no children")
"""
    assert run(program) == "3 8\nno children\n"
    assert os.path.ismount(str(penstock.dataset("small").path))
