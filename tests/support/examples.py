"""The data that the examples read, in a bucket and on a mount, and how one is run."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
from PIL import Image

from tests.support.mounts import Mount

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CLASSES = ("cat", "dog", "owl")
TABLES = [[(number + row) % 3 for row in range(100)] for number in range(5)]


def jpeg(seed: int) -> bytes:
    pixels = numpy.random.default_rng(seed).integers(0, 255, (40, 48, 3), dtype=numpy.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG")
    return encoded.getvalue()


SAMPLES = {f"{i:04}": (jpeg(i), b"%d" % (i % 3)) for i in range(48)}


@dataclass(frozen=True)
class Stage:
    """A folder of data twice: in a bucket that is mounted, and plain."""

    mount: Mount
    plain: Path
    bucket: str

    @property
    def files(self) -> int:
        return sum(path.is_file() for path in self.plain.rglob("*"))


def in_this_process(test: Callable[..., None]) -> Callable[..., None]:
    """For a test that trains here as well: the import of torch and what its optimizers load take
    longer than what the examples learn. From Python 3.12 on, a fork beside threads warns."""
    ignore = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    return ignore(pytest.mark.usefixtures("one_thread")(test))


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """`python EXAMPLE...`, as its README says; offline, and with one thread for arithmetic. `more`
    goes into its environment."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, timeout=90, check=False, env=environment,
    )  # fmt: skip


def output(*words: object) -> str:
    result = run(*words)
    assert result.returncode == 0, result.stderr
    assert "plan" not in result.stderr  # the mount took it; otherwise that is said
    return result.stdout
