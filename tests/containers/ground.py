"""Where docs/guides/containers.md is followed: its commands, and what they leave on the machine."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.mounttable import FILESYSTEM_TYPE, mount_table
from tests.support.podman import logs, podman, shell
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path("/srv/penstock")
FILES = {f"{number}.jpg": hashlib.sha256(b"%d" % number).digest() * 3000 for number in range(12)}
SUMS = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


class Guide:
    """The guide's sections, as what a reader types."""

    def __init__(self, path: Path) -> None:
        self._text = path.read_text()

    def section(self, title: str) -> str:
        (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", self._text, re.M | re.S)
        return found

    def commands(self, title: str) -> list[str]:
        """Return the commands of a section, each with its continuation lines."""
        text = re.sub(r"```.*?```", "", self.section(title), flags=re.S)
        lines = re.findall(r"^    (.*)$", text, re.M)
        joined = "\n".join(lines).replace("\\\n", "")
        return [line for line in joined.splitlines() if line]

    def command(self, title: str, *words: str) -> str:
        """Return the command of a section in which all these words are."""
        (found,) = [one for one in self.commands(title) if all(word in one for word in words)]
        return found

    def file(self, title: str) -> str:
        (found,) = re.findall(r"```yaml\n(.*?)```", self.section(title), re.S)
        return found

    def table(self, title: str) -> list[list[str]]:
        rows = re.findall(r"^\| (.*) \|$", self.section(title), re.M)
        return [row.split(" | ") for row in rows][2:]


GUIDE = Guide(ROOT / "docs" / "guides" / "containers.md")


@dataclass(frozen=True)
class Ground:
    folder: Path  # with keys.env

    def run(self, command: str) -> str:
        """Run one line of the guide as a shell does."""
        # podman-compose is among the packages of the tests.
        programs = Path(sys.executable).parent
        return shell(["bash", "-c", f"PATH={programs}:$PATH; {command}"], cwd=self.folder)

    def attempt(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def mounted(self) -> list[str]:
        """Return the mounts of Penstock below /srv on this machine."""
        found = [entry for entry in mount_table() if entry.kind == FILESYSTEM_TYPE]
        return [one.mountpoint for one in found if one.mountpoint.startswith(f"{SHARED}/")]

    def wait_until_mounted(self, container: str, mountpoint: str) -> dict[str, Any]:
        def stats() -> dict[str, Any] | None:
            asked = f"podman exec {container} penstock stats {mountpoint} -o json"
            done = self.attempt(asked)
            return json.loads(done.stdout) if done.returncode == 0 else None

        return wait_until(stats, lambda: logs(container), pause_s=0.2)

    def exit_code(self, container: str) -> int:
        return int(podman("inspect", "--format={{.State.ExitCode}}", container))


def sums_in(printed: str) -> dict[str, str]:
    """Return what sha256sum printed, by the names of files."""
    found = re.findall(r"^([0-9a-f]{64})  (?:.*/)?([^/\n]+)$", printed, re.M)
    return {name: digest for digest, name in found}
