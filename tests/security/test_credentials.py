"""Keys and tokens are nowhere but in the environment they came in: not in the process list, not
in the environment of what serves a mount, not in what is said, logged or kept, whatever goes wrong
and however much is logged."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.workspace import free_port
from tests.support.leaks import Seen
from tests.support.metrics import fetch
from tests.support.mounts import Mounter, penstock, penstock_process
from tests.support.s3 import ACCESS_KEY, KEYS, S3, SECRET_KEY, serve_rclone
from tests.support.trees import write_tree

TOKEN = "FwoGZXIvYXdzEPENSTOCKsession+token/only=="
OTHER = "of-a-service/that+is=not+a+store"
WRONG = "wrong-and-yet-a-secret/of+someone"


class SeenFromOutside(Seen):
    """Commands are processes, which log as they are told, and which others can list."""

    def run(self, *words: str | Path) -> int:
        result = penstock_process(*words)
        self.said += [result.stdout, result.stderr]
        self.note_command_lines()
        return result.returncode


@pytest.fixture
def seen(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    # Everything that is logged at another level is logged at this one too.
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return SeenFromOutside([state, tmp_path])


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
    monkeypatch.setenv("SOME_SERVICE_TOKEN", OTHER)
    port = free_port()
    words = ("s3://kept", "--endpoint", rclone.endpoint, "--block-size", "128KiB", "--workers", "2")
    mount = mounter(*words, "--metrics", str(port))
    seen.said.append(mount.said)
    assert len(seen.note_command_lines()) == 6, "supervisor, metrics, server, nursery, two workers"
    seen.note_processes()
    assert (mount.path / "large").read_bytes() == b"y" * 300_000
    for words in (["stats", mount.path, "-o", "json"], ["refresh", mount.path]):
        result = penstock(*words)  # these ask the server; only the doctor asks the store itself
        assert result.returncode == 0, result.stderr
        seen.said += [result.stdout, result.stderr]
    seen.said.append(fetch(port))
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    assert (mount.path / "small").read_bytes() == b"x", "the next server has the keys as well"
    assert penstock("upgrade", mount.path).returncode == 0
    assert seen.run("refresh", mount.path) == 0
    seen.note_processes()
    bucket.rename(bucket.with_name("gone"))
    assert seen.run("refresh", mount.path) != 0
    seen.run("doctor", mount.path)
    mount.umount()
    assert seen.places_of(SECRET_KEY, TOKEN, OTHER) == []
    logs = [text for where, text in seen.texts() if where.endswith(".log")]
    assert len(logs) == 1, "there was a log to look into"


def test_a_rejected_mount_shows_no_credentials_anywhere(
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
