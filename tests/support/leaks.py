"""Everything that another pair of eyes could come by, to look for secrets in."""

import base64
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from penstock.paths import state_dir
from tests.support.datasets import processes_of
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

    def note_command_lines(self) -> list[str]:
        """Note those of this test's processes, and return them."""
        found = processes_of(state_dir())
        self.said += found
        return found

    def note_processes(self) -> None:
        """The command lines and environments of this test's processes."""
        for line in self.note_command_lines():
            with suppress(OSError):  # it has ended
                self.said.append(Path(f"/proc/{line.split()[0]}/environ").read_text("latin-1"))

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
    texts, secrets = texts_of_bundle(bundle), spellings(secret)
    return [name for name, text in texts.items() if any(one in text for one in secrets)]


def texts_of_bundle(bundle: Path) -> dict[str, str]:
    """Its files by their path below the folder that all of them are in."""
    with tarfile.open(bundle) as archive:
        texts = {
            one.name.partition("/")[2]: file.read().decode("utf-8", "surrogateescape")
            for one in archive.getmembers()
            if (file := archive.extractfile(one)) is not None
        }
    assert texts, "an empty bundle proves nothing"
    return texts


def spellings(secret: str) -> set[str]:
    """As it is, quoted, as hexadecimal digits, and in base64 wherever it stands in a longer text:
    there its first and last letters depend on the neighbours."""
    found = {secret, quote(secret), quote(secret, safe=""), secret.encode().hex()}
    for before in range(3):
        found.add(base64.b64encode(b"." * before + secret.encode()).decode()[4:-4])
    return found
