"""What people declare: YAML manifests and the plans of benchmarks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from penstock.bench.plans.reading import read_plan
from penstock.errors import ManifestError
from penstock.specs.documents import decode, read_all
from tests.fuzz.target import Check, Target

T = TypeVar("T")
_FILE = "f.yaml"
_ROOT = Path(__file__).parents[2]
_SEEDS = (
    *sorted(_ROOT.glob("examples/*/*.yaml")),
    *sorted(_ROOT.glob("tests/reconcile/manifests/*.yaml")),
)
_JOB = b"""apiVersion: penstock.dev/v1alpha1
kind: TrainingJob
metadata: {name: resnet}
spec:
  trainer: mpi
  workers: 2
  command: ["./train.sh", "8"]
  data: [{dataset: imagenet, mountPath: /data}]
  env: [{name: EPOCHS, value: "3"}]
  timeout: 2h
---
apiVersion: data.fluid.io/v1alpha1
kind: DataLoad
metadata: {name: load}
spec:
  dataset: {name: imagenet}
  target: [{path: /a, replicas: 1}]
  policy: Cron
  schedule: "0 * * * *"
"""


@contextmanager
def _open_yaml(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        documents = _taken(lambda: read_all([(decode(data, _FILE), _FILE)])) or ()
        assert all(document.where().startswith(f"{_FILE}:") for document in documents)

    yield check


@contextmanager
def _open_bench_plan(folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        _taken(lambda: read_plan(decode(data, _FILE), _FILE, folder))

    yield check


def _taken(read: Callable[[], T]) -> T | None:
    """What was read; None if it was refused, as it has to be."""
    try:
        return read()
    except ManifestError as error:
        refused = error
    assert refused.problems
    assert all(one.where.startswith(_FILE) for one in refused.problems)
    return None


_WORDS = (
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!python/object:os.system ",
    b"? ",
    b"---\n",
    b"- ",
    b": ",
    b"kind: Dataset\n",
    b"apiVersion: data.fluid.io/v1alpha1\n",
    b"kind: TrainingJob\n",
    b"spec:\n  ",
    b"quota: 1e400Gi\n",
    b"0x",
    b"1_000",
    b"\xef\xbb\xbf",
    b"\xff",
    b"{" * 70,
    b"9" * 5000,
    b"inf",
    b".nan",
    b"~",
    b"\t",
    b"%YAML 9.9\n",
    b"\x00",
    b"\xc2\x85",
)

YAML_TARGET = Target(
    "yaml",
    "a manifest is taken, or refused with the line of each mistake",
    _open_yaml,
    [_JOB, *(file.read_bytes() for file in _SEEDS)],
    _WORDS,
)
BENCH_PLAN_TARGET = Target(
    "bench-plan",
    "a plan is taken, or refused with the line of each mistake",
    _open_bench_plan,
    [file.read_bytes() for file in sorted(_ROOT.glob("plans/*.yaml"))],
    _WORDS,
)
