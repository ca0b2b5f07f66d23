"""Under `penstock run`, open() of a file on a mount sends its server nothing, and is as it was."""

import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.integrations import quiet_open
from tests.support.loader_places import Place, mount, places, state

__all__ = ["mount", "places", "state"]  # fixtures
asks = pytest.mark.skipif(sys.version_info >= (3, 14), reason="3.14 asks no file whether it is one")
FILES = {f"{i % 4}/{i:02}.txt": f"line {i}\nand more\n".encode() * 50 for i in range(12)}


# One script for all of it, since the import of torch takes longer.
READS = """
import json, os, sys
from hashlib import sha256
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, root):
        self.paths = sorted(
            os.path.join(place, name) for place, _, names in os.walk(root) for name in names
        )

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return sha256(file.read()).hexdigest()

def train(root, workers, method):
    loader = DataLoader(
        Files(root), 5, num_workers=workers, multiprocessing_context=method if workers else None
    )
    return [digest for batch in loader for digest in batch]

if __name__ == "__main__":
    root, turns = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps([train(*turn) for turn in turns]))
"""


@asks
def test_a_script_that_opens_files_sends_the_mount_no_ioctl(mount: Place, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(READS)
    (tmp_path / "data").symlink_to(mount.path)
    root = str(mount.path)
    every_way = [(root, 0, "fork"), (str(tmp_path / "data"), 2, "fork"), (root, 1, "spawn")]
    command = [sys.executable, tmp_path / "script.py", root, json.dumps(every_way)]
    result = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--", *command],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert result.stderr == ""
    digests = json.loads(result.stdout)
    assert mount.requests()["IOCTL"] == 0
    # This process is not run by us: it reads the same, at an ioctl for each file.
    plain = runpy.run_path(str(tmp_path / "script.py"))
    assert digests == [plain["train"](root, 0, "fork")] * 3
    assert len(digests[0]) == len(FILES)
    assert mount.requests()["IOCTL"] == len(FILES)


LOOKS = """
import builtins, inspect, io, json, os, pathlib, pickle, sys, copy, warnings
if "hooked" in sys.argv:
    import torch.utils.data  # with it comes the hook
path = sys.argv[1] + "/0/00.txt"
results = []

def tell(call, *arguments, **options):
    try:
        with call(*arguments, **options) as file:
            raw = getattr(file, "buffer", file)
            results.append([
                str(type(file)), repr(file), file.mode, getattr(file, "line_buffering", None),
                getattr(file, "encoding", None), len(raw.peek(1)) if hasattr(raw, "peek") else None,
                repr(file.readline()), repr(file.read(5000)),
            ])
    except Exception as error:
        results.append([type(error).__name__, str(error)])

class Has:
    open = open

for where in (path, pathlib.Path(path), os.fsencode(path), path + "x", sys.argv[1], path + "\\0"):
    tell(open, where)
    tell(open, where, "rb")
    tell(Has().open, where, mode="br")
for mode in ("rt", "tr", "r+", "w", "x", "a", "rbt", "U", "", None, 5, "rb+"):
    tell(io.open, path, mode)
for buffering in (-1, -2, 0, 1, 7, 100000, -1.0, None, True):
    tell(open, path, "rb", buffering)
    tell(open, path, buffering=buffering)
for arguments, options in (
    ((path, "r", -1, "latin-1", "replace", "\\n"), {}),
    ((path, "r", -1, "latin-1", "replace", "\\n", True, None, 5), {}),
    ((path,), {"encoding": "no-such"}), ((path, "rb"), {"encoding": "utf-8"}),
    ((path,), {"newline": "x"}), ((path,), {"closefd": False}), ((path, "r"), {"mode": "rb"}),
    ((path,), {"opener": lambda name, flags: os.open(os.devnull, flags)}),
    ((path, "r", -1), {"buffering": 5}), ((path,), {"nothing": 5}), ((), {"file": path}),
    ((), {}), (("relative",), {}),
):
    tell(open, *arguments, **options)
tell(pathlib.Path(path).open, "rb")
fd = os.open(path, os.O_RDONLY)
tell(open, fd, "rb", closefd=False)
tell(os.fdopen, fd)
results.append([
    repr(open), open.__name__, open.__module__.strip("_"), open.__doc__,
    str(inspect.signature(open)),
    open is io.open, builtins.open is open, callable(open), copy.deepcopy(open) is open,
    pickle.loads(pickle.dumps(open)) is open, hash(open) == hash(io.open),
])
print(json.dumps(results))
if "penstock.integrations.quiet_open" in sys.modules:
    print(type(open).__name__)
"""


@asks
def test_open_behaves_as_usual_for_a_script(mount: Place, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOKS)
    ours, theirs = [sys.executable, "-m", "penstock", "run", "--"], [sys.executable, "-W", "ignore"]
    plain, hooked = (
        subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=110, text=True).stdout
        for command in (
            [*theirs, script, mount.path],
            [*ours, *theirs, script, mount.path, "hooked"],
        )
    )
    hooked, kind = hooked.splitlines()
    assert kind == "QuietOpen"
    for before, after in zip(json.loads(plain), json.loads(hooked), strict=True):
        assert after == before


def test_nothing_is_replaced_in_a_process_that_only_imports_penstock(tmp_path: Path) -> None:
    quiet_open.add_roots([str(tmp_path)])
    assert not isinstance(io.open, quiet_open.QuietOpen)
    assert open is io.open
