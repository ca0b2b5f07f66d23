"""Mounts of Penstock, made as a user makes them."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.api import mounts
from penstock.cli.app import run
from penstock.store.redaction import LOG_FORMAT, RedactingFormatter
from tests.support.kernelcaches import forget
from tests.support.waiting import wait_until


def why_no_passthrough() -> str | None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if os.geteuid() != 0:
        return "passthrough needs root"
    return None if release >= (6, 9) else "passthrough needs kernel 6.9 or later"


needs_passthrough = pytest.mark.skipif(
    why_no_passthrough() is not None, reason=why_no_passthrough() or ""
)
MODES = ["pagecache", pytest.param("passthrough", marks=needs_passthrough)]
# What a test asserts must hold for any number of them. By default it is the same on any machine.
WORKERS = os.environ.get("PENSTOCK_TEST_WORKERS", "1")
both_modes = pytest.mark.parametrize("mode", MODES)


def penstock(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in this process: a process of its own costs 0.1 to 0.2 s of CPU.

    With options of `subprocess.run` it gets a process, and so does what would replace this one.
    """
    words = [str(argument) for argument in arguments]
    replaces_us = words[:1] in (["run"], ["attach"], ["serve"]) or (
        words[:1] == ["mount"] and not {"-b", "--background"} & set(words)
    )
    if options or replaces_us or threading.current_thread() is not threading.main_thread():
        return penstock_process(*words, **options)
    stdout, stderr = io.StringIO(), io.StringIO()
    log = logging.StreamHandler(stderr)
    log.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.getLogger("penstock").addHandler(log)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = run(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        logging.getLogger("penstock").removeHandler(log)
    return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())


def penstock_process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **options,
    )


def succeed(*arguments: str | Path, **options: Any) -> str:
    """Run a command that must succeed; return its stdout."""
    result = penstock(*arguments, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fail(*arguments: str | Path, code: int = 2) -> str:
    """Run a command that must end with this code and print nothing; return its stderr."""
    result = penstock(*arguments)
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    return result.stderr


@dataclass
class Mount:
    path: Path
    arguments: tuple[str | Path, ...] = ()
    said: str = ""
    _mounted: bool = field(default=True)
    _gets_before: int = 0
    _hedges: int = 0

    def stats(self) -> dict[str, Any]:
        """What `penstock stats -o json` prints, without the start of a process.

        Between two servers only the supervisor answers, with less: wait for the next server.
        """

        def answered() -> dict[str, Any] | None:
            found = mounts.stats(str(self.path))
            return None if found.get("state") == "restarting" else found

        return wait_until(answered, f"{self.path} goes on restarting")

    def messages_while(self, act: Callable[[], object]) -> Counter[str]:
        """What the kernel sends to the server while `act` runs."""
        before = Counter(self.stats()["requests"])
        act()
        return Counter(self.stats()["requests"]) - before

    def wait_until_cached(self, name: str) -> None:
        """A reader has its bytes before the cache has them."""
        path = self.path / name
        size = path.stat().st_size
        wait_until(lambda: int(os.getxattr(path, "user.penstock.cached")) >= size)

    def gets(self) -> int:
        """The GETs since it was mounted, or since `begin_test`, without hedges.

        A hedge is counted a moment before its GET: where one is new, count again.
        """
        stats = self.stats()
        while stats["hedges"] != self._hedges:
            self._hedges = stats["hedges"]
            time.sleep(0.02)
            stats = self.stats()
        return gets_in(stats) - self._gets_before

    def begin_test(self) -> None:
        """Forget what an earlier test left: what is cached, by us or by the kernel, and counts."""
        wait_until(self._is_quiet, "plans or fetches of an earlier test go on")
        if "--no-cache" not in self.arguments:
            assert penstock("warm", self.path, "--evict").returncode == 0
        forget(self.path)
        self._gets_before = gets_in(self.stats())

    def _is_quiet(self) -> bool:
        stats = self.stats()
        return not stats["plans"] and stats["fetching"] == stats["gets_in_flight"] == 0

    def refresh(self) -> None:
        assert penstock("refresh", self.path).returncode == 0

    def umount(self) -> None:
        if self._mounted:
            result = penstock("umount", self.path)
            assert result.returncode == 0, result.stderr
            self._mounted = False


def warm(mount: Mount, *arguments: str | Path, code: int = 0, **options: Any) -> dict[str, Any]:
    """What `penstock warm -o json` prints."""
    result = penstock("warm", mount.path, *arguments, "-o", "json", **options)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def gets_in(stats: Mapping[str, Any]) -> int:
    """GETs without hedges, which come on a busy machine when a request is slow."""
    return stats["store_requests_by_verb"].get("get", 0) - stats["hedges"]


def plan_of(mount: Mount) -> dict[str, Any]:
    """What a mount tells of the first plan that it follows."""
    return mount.stats()["plans"][0]


def is_settled(mount: Mount) -> bool:
    """Nothing comes any more: not now, and not in the moment between asking and starting."""
    for _ in range(3):
        stats = mount.stats()
        plan = stats["plans"][0]
        if plan["ahead"] != plan["end"] or stats["gets_in_flight"]:
            return False
        time.sleep(0.02)
    return True


Mounter = Callable[..., Mount]


@contextmanager
def mounting(folder: Path) -> Iterator[Mounter]:
    """mounter(source, *options) mounts in the background; everything is unmounted at the end."""
    with ExitStack() as stack:
        count = 0

        def mount(source: str, *options: str | Path) -> Mount:
            nonlocal count
            count += 1
            path = folder / f"mnt{count}"
            path.mkdir()
            arguments = (source, path, "-b", *options)
            if not any(
                str(option).startswith(("--tier", "--cache-dir", "--no-cache"))
                for option in options
            ):
                arguments += ("--cache-dir", folder / "cache")
            if "--workers" not in options:
                arguments += ("--workers", WORKERS)
            result = penstock("mount", *arguments)
            assert result.returncode == 0, result.stderr
            mounted = Mount(path, arguments, result.stderr)
            stack.callback(mounted.umount)
            return mounted

        yield mount
