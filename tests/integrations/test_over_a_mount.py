"""Training over a real mount, told in counts: GETs of the store, READs of the kernel, plans."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.warm import look
from tests.conftest import S3, Mount, Mounter, write_tree

FILES = {f"{i % 5}/{i:03}.jpg": random.Random(i).randbytes(20_000 + i) for i in range(60)}
EPOCH = {name.split("/")[1]: sha256(data).hexdigest() for name, data in FILES.items()}
TRAIN = Path(__file__).with_name("train.py")


class Training:
    """The script, held where it waits for a line."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate("\n", timeout=60)
        return self.process.returncode, said

    def leave(self) -> None:
        self.process.kill()
        self.process.communicate()


Trainer = Callable[..., Training]


@pytest.fixture
def train() -> Iterator[Trainer]:
    with ExitStack() as stack:

        def start(
            mount: Mount, kind: str = "shuffled", workers: int = 0, *, hooked: bool = False,
            **environment: str,
        ) -> Training:  # fmt: skip
            command = [sys.executable, str(TRAIN), str(mount.path), kind, str(workers)]
            if hooked:
                command = [sys.executable, "-m", "penstock", "run", "--", *command]
            training = Training(command, environment)
            stack.callback(training.leave)
            return training

        yield start


@pytest.fixture
def mount(s3: S3, mounter: Mounter, request: pytest.FixtureRequest) -> Mount:
    name = request.node.name.replace("_", "-").replace("[", "-").replace("]", "")[-60:].strip("-")
    write_tree(s3.bucket(name), FILES)
    return mounter(f"s3://{name}", "--endpoint", s3.endpoint, "--mode", "pagecache")


def plans_when(mount: Mount, true: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 30
    while not true(plans := mount.stats()["plans"]):
        assert time.monotonic() < deadline, plans
        time.sleep(0.05)
    return plans


def reads(mount: Mount) -> int:
    return mount.stats()["requests"].get("READ", 0)


# The kernel may take a page back at any moment, unasked.
TAKEN_BACK = 6


def wait_until_resident(mount: Mount) -> None:
    """Until the page cache holds every file; nothing is read to find out."""
    names = b"".join(os.fsencode(name) + b"\0" for name in FILES) + b"\0"
    command = [sys.executable, "-IS", look.__file__, str(mount.path)]
    deadline = time.monotonic() + 30
    least = len(FILES) - TAKEN_BACK
    while (seen := subprocess.run(command, input=names, stdout=subprocess.PIPE).stdout).count(
        look.RESIDENT
    ) < least:
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("hooked", "kind", "workers"),
    [
        (True, "shuffled", 2),
        (False, "planned", 2),
        (True, "planned", 0),  # one plan, not two
    ],
)
def test_a_planned_epoch_gets_each_file_once_and_reads_what_was_pushed(
    mount: Mount, train: Trainer, hooked: bool, kind: str, workers: int
) -> None:
    training = train(mount, kind, workers, hooked=hooked)
    assert training.hear() == "begun\n"
    wait_until_resident(mount)
    (plan,) = mount.stats()["plans"]
    assert (plan["label"], plan["files"], plan["missing"]) == ("train.py", len(FILES), 0)
    before = reads(mount)
    training.go_on()
    assert json.loads(training.hear()) == [EPOCH, EPOCH]
    assert mount.gets() == len(FILES)
    assert reads(mount) <= before + TAKEN_BACK
    (plan,) = mount.stats()["plans"]
    assert plan["handed_out"] == 2 * len(FILES)
    assert training.end() == (0, "")
    assert plans_when(mount, lambda plans: not plans) == []


def test_each_rank_has_a_plan_of_its_own(mount: Mount, train: Trainer) -> None:
    ranks = [
        train(mount, "distributed", hooked=True, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)
    ]
    assert [rank.hear() for rank in ranks] == ["begun\n"] * 2
    labels = [plan["label"] for plan in mount.stats()["plans"]]
    assert sorted(labels) == ["train.py rank 0", "train.py rank 1"]
    for rank in ranks:
        rank.go_on()
    one, other = ([dict(epoch) for epoch in json.loads(rank.hear())] for rank in ranks)
    assert [{**one[epoch], **other[epoch]} for epoch in (0, 1)] == [EPOCH, EPOCH]
    assert mount.gets() == len(FILES)
    assert [rank.end() for rank in ranks] == [(0, "")] * 2


def test_a_killed_script_leaves_no_plan_and_a_mount_that_goes_away_is_said(
    mount: Mount, train: Trainer
) -> None:
    killed, training = train(mount, workers=2, hooked=True), train(mount, hooked=True)
    assert [killed.hear(), training.hear()] == ["begun\n"] * 2
    assert len(mount.stats()["plans"]) == 2
    killed.leave()
    assert len(plans_when(mount, lambda plans: len(plans) < 2)) == 1
    mount.umount()
    training.go_on()
    code, said = training.end()
    assert code == 1
    assert f"penstock: Files: {mount.path} is not mounted any more\n" in said
    assert "FileNotFoundError: " in said.splitlines()[-1]  # the script's own


def test_a_plan_with_files_that_are_not_there_says_so_and_reads_the_others(
    mount: Mount, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
from torch.utils.data import DataLoader
from penstock.integrations.torch import PenstockFiles
paths = [{str(mount.path)!r} + "/" + name for name in {[*FILES, "0/gone.jpg"]!r}]
drawn = iter(DataLoader(PenstockFiles(paths, load=len), collate_fn=list))
print(next(drawn), flush=True)
sys.stdin.readline()
print(sum(len(batch) for batch in drawn), flush=True)
""")
    command = [sys.executable, "-m", "penstock", "run", sys.executable, str(script)]
    training = Training(command, {})
    try:
        training.hear()
        plans_when(mount, lambda plans: bool(plans) and plans[0]["missing"] == 1)
        training.go_on()
        assert training.hear() == "60\n"
        code, said = training.end()
    finally:
        training.leave()
    assert code == 0
    assert said == (
        "penstock: PenstockFiles: 1 of the files that will be read are not on the mount, "
        f"{mount.path}/0/gone.jpg for one\n"
    )
