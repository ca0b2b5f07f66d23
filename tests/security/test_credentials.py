"""Keys and tokens are nowhere but in the environment they came in: not in the process list, not
in what is said, logged or kept, whatever goes wrong and however much is logged."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.bench.programs import free_port
from tests.support.mounts import Mounter, penstock, penstock_process
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, serve_rclone
from tests.support.trees import write_tree

TOKEN = "FwoGZXIvYXdzEPENSTOCKsession+token/only=="
WRONG = "wrong-and-yet-a-secret/of+someone"


@dataclass
class Seen:
    """Everything that another pair of eyes could come by."""

    folders: list[Path]
    said: list[str] = field(default_factory=list[str])

    def run(self, *words: str | Path) -> int:
        result = penstock_process(*words)
        self.said += [result.stdout, result.stderr]
        self.note_processes()
        return result.returncode

    def note_processes(self) -> int:
        """Note the arguments of our processes; return how many there are."""
        # Of this test alone: others run at the same time, and are told keys on purpose.
        found = 0
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
                found += 1
        return found

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
    """Of a database by another process: to close any descriptor of it gives up the locks that
    SQLite holds on it in this one, and the next to open it would cut the memory that both share."""
    if ".sqlite" in path.name:
        return subprocess.run(["cat", path], capture_output=True, check=False).stdout
    return path.read_bytes()


@pytest.fixture
def seen(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    # Everything that is logged at another level is logged at this one too.
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return Seen([state, tmp_path])


@pytest.fixture
def rclone(tmp_path: Path) -> Iterator[S3]:
    """A server that takes any session token. Its ranges are fetched through botocore, which logs
    the headers of requests."""
    (tmp_path / "buckets").mkdir()
    with serve_rclone(tmp_path / "buckets") as server:
        yield server


def test_a_mount_in_use_shows_no_credentials_anywhere(
    seen: Seen, rclone: S3, tmp_path: Path, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    bucket = tmp_path / "buckets/kept"
    write_tree(bucket, {"small": b"x", "large": b"y" * 300_000})
    mount = mounter("s3://kept", "--endpoint", rclone.endpoint, "--block-size", "128KiB")
    seen.said.append(mount.said)
    assert seen.note_processes() >= 2, "the supervisor and the server"
    assert (mount.path / "large").read_bytes() == b"y" * 300_000
    for words in (["stats", mount.path, "-o", "json"], ["refresh", mount.path]):
        result = penstock(*words)  # these ask the server; only the doctor asks the store itself
        assert result.returncode == 0, result.stderr
        seen.said += [result.stdout, result.stderr]
    bucket.rename(bucket.with_name("gone"))
    assert seen.run("refresh", mount.path) != 0
    seen.run("doctor", mount.path)
    mount.umount()
    assert seen.places_of(SECRET_KEY, TOKEN) == []
    logs = [text for where, text in seen.texts() if where.endswith(".log")]
    assert len(logs) == 1, "there was a log to look into"


def test_a_mount_that_is_refused_shows_no_credentials_anywhere(
    seen: Seen, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.bucket("refused")
    (tmp_path / "mnt").mkdir()
    words = ["mount", "s3://refused", tmp_path / "mnt", "--no-cache", "--endpoint"]
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert seen.run(*words, nowhere, "--deadline", "1s", "-b") == 3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    assert seen.run(*words, s3.endpoint, "-b") == 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY")
    assert seen.run(*words, s3.endpoint) == 2
    profiles = tmp_path / "profiles"
    profiles.write_text(
        f"[p]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={WRONG}\n"
        f"aws_session_token={TOKEN}\n"
    )
    profiles.chmod(0o600)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert seen.run(*words, s3.endpoint, "-b") == 2
    profiles.unlink()
    assert seen.places_of(SECRET_KEY, TOKEN, WRONG) == []
