"""Everything that another pair of eyes could come by, to look for secrets in."""

import base64
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tests.support.mounts import penstock


@dataclass
class Seen:
    """What was printed, the command lines of processes, and the files in `folders`."""

    folders: list[Path]
    said: list[str] = field(default_factory=list[str])

    def run(self, *words: str | Path) -> int:
        result = penstock(*words)
        self.said += [result.stdout, result.stderr]
        return result.returncode

    def note_processes(self) -> None:
        """The command lines of this test's processes. Other tests put keys into theirs."""
        ours = f"PENSTOCK_STATE_DIR={os.environ['PENSTOCK_STATE_DIR']}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes()
                told = (process / "environ").read_bytes()
            except OSError:
                continue  # it has ended
            # The test's own S3 server is told its key there.
            if b"penstock" in words and ours in told.split(b"\0"):
                self.said.append(words.decode(errors="replace"))

    def texts(self) -> Iterator[tuple[str, str]]:
        yield from (("said", text) for text in self.said)
        for folder in self.folders:
            for path in folder.rglob("*"):
                with suppress(FileNotFoundError):  # a loop that is at work makes and removes files
                    if path.is_file():
                        yield str(path), _content(path).decode("latin-1")

    def places_of(self, *secrets: str) -> list[str]:
        return [
            f"{where}: {text[max(0, text.find(secret) - 60) : text.find(secret)]!r}"
            for where, text in self.texts()
            for secret in secrets
            if secret in text
        ]


def _content(path: Path) -> bytes:
    """Read a database by another process: to close any descriptor of it gives up the locks that
    SQLite holds on it in this one, and the next to open it would cut the memory that both share."""
    if ".sqlite" in path.name:
        return subprocess.run(["cat", path], capture_output=True, check=False).stdout
    return path.read_bytes()


def places_in_bundle(bundle: Path, secret: str) -> list[str]:
    """The files of a support bundle that hold this secret, in any spelling."""
    found: list[str] = []
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            text = file.read()
            if any(one in text for one in _spellings(secret)):
                found.append(member.name)
        assert archive.getmembers(), "an empty bundle proves nothing"
    return found


def _spellings(secret: str) -> set[bytes]:
    data = secret.encode()
    found = {data, quote(secret, safe="").encode()}
    for before in range(3):
        # In the middle of a longer text: its first and last letters depend on the neighbours.
        found.add(base64.b64encode(b"." * before + data)[4:-4])
    return found
