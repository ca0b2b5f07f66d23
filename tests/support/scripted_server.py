"""Servers that follow a script, so that one can die at exactly one moment of its life.

    python -m tests.support.scripted_server MOUNTPOINT SERVER

runs a supervisor whose servers are the program SERVER. They mount nothing: what they hand over as
/dev/fuse is an empty memory file.
"""

import sys
from pathlib import Path
from typing import Any

from penstock.daemon.server_process import CHANNEL_VARIABLE, LaunchSpec
from penstock.daemon.supervisor import Supervisor

# What every script begins with.
_START = f"""#!{sys.executable}
import json, os, signal, socket, sys, time
from pathlib import Path
from penstock.daemon.channel import Channel

folder = Path(__file__).parent
link = Channel(socket.socket(fileno=int(os.environ["{CHANNEL_VARIABLE}"])))
link.receive()
runs = folder / (Path(__file__).name + ".runs")
with open(runs, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
run = len(runs.read_text().split())

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)

def prepare():
    link.send({{"prepared": True}})
    received = link.receive()
    if received is None:
        sys.exit()
    return received[0]["go"]

def serve(go, on_flush=lambda: link.send({{"flushed": True}})):
    if "fuse" not in go["kept"]:
        link.send({{"keep": "fuse"}}, [os.memfd_create("fuse")])
    link.send({{"ready": []}})
    while (received := link.receive()) is not None:
        if "flush" in received[0]:
            on_flush()
"""
WELL = "serve(prepare())"


def script(path: Path, body: str) -> Path:
    path.write_text(f"{_START}\n{body}\n")
    path.chmod(0o755)
    return path


def runs_of(server: Path) -> list[int]:
    """The process numbers of all who have run that script."""
    runs = server.with_name(f"{server.name}.runs")
    return [int(pid) for pid in runs.read_text().split()] if runs.exists() else []


class Nobody:
    end = None

    def progress(self, files: int, size_bytes: int) -> None: ...

    def ready(self, lines: list[str]) -> None: ...

    def failed(self, what: str, hint: str | None, exit_code: int) -> None: ...


def main() -> None:
    settings: dict[str, Any] = {"watchdog_s": 60.0, "grace_s": 0.0}
    plan = LaunchSpec(
        Path(sys.argv[1]), "scripted", settings, sys.argv[2], watchdog_s=60.0, grace_s=0.0
    )
    sys.exit(Supervisor(plan, Nobody()).run())


if __name__ == "__main__":
    main()
