"""Keys and tokens are nowhere but in the environment they came in: not in the process list, not
in what is said, logged or kept, whatever goes wrong and however much is logged."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ACCESS_KEY, S3, SECRET_KEY, Mounter, free_port, penstock, write_tree

TOKEN = "FwoGZXIvYXdzEPENSTOCKsession+token/only=="
WRONG = "wrong-and-yet-a-secret/of+someone"


@dataclass
class Seen:
    """Everything that another pair of eyes could come by."""

    folders: list[Path]
    said: list[str] = field(default_factory=list[str])

    def run(self, *words: str | Path) -> int:
        result = penstock(*words)
        self.said += [result.stdout, result.stderr]
        self.note_processes()
        return result.returncode

    def note_processes(self) -> None:
        # Of this test alone: others run at the same time, and are told keys on purpose.
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
    """Of a database by another process: to close any descriptor of it gives up the locks that
    SQLite holds on it in this one, and the next to open it would cut the memory that both share."""
    if ".sqlite" in path.name:
        return subprocess.run(["cat", path], capture_output=True, check=False).stdout
    return path.read_bytes()


@pytest.fixture
def seen(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    # Everything that is logged at another level is logged at this one too.
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    return Seen([state, tmp_path])


def test_a_mount_in_use_shows_no_credentials_anywhere(seen: Seen, s3: S3, mounter: Mounter) -> None:
    bucket = s3.bucket("kept")
    # Two blocks: rclone's server has its ranges fetched through botocore, which logs headers.
    write_tree(bucket, {"small": b"x", "large": b"y" * 300_000})
    source = f"s3://{bucket.name}"
    mount = mounter(source, "--endpoint", s3.endpoint, "--block-size", "128KiB")
    seen.said.append(mount.said)
    assert (mount.path / "large").read_bytes() == b"y" * 300_000
    for words in (["stats", mount.path, "-o", "json"], ["stats", mount.path], ["stats"],
                  ["doctor", mount.path], ["doctor", mount.path, "-o", "json"],
                  ["refresh", mount.path], ["cache", "ls"]):  # fmt: skip
        seen.run(*words)
    shutil.move(bucket, bucket.with_name(f"{bucket.name}-gone"))
    assert seen.run("refresh", mount.path) != 0
    seen.run("stats", mount.path, "-o", "json")
    seen.run("doctor", mount.path)
    mount.umount()
    assert seen.places_of(SECRET_KEY, TOKEN) == []
    logs = [text for where, text in seen.texts() if where.endswith(".log")]
    assert len(logs) == 1, "there was a log to look into"


@pytest.mark.parametrize("background", [["-b"], []])
def test_a_mount_that_is_refused_shows_no_credentials_anywhere(
    seen: Seen, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: list[str]
) -> None:
    (s3.folder / "refused").mkdir(exist_ok=True)
    (tmp_path / "mnt").mkdir()
    words = ["mount", "s3://refused", tmp_path / "mnt", *background, "--no-cache", "--endpoint"]
    assert seen.run(*words, f"http://127.0.0.1:{free_port()}", "--deadline", "1s") == 3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    assert seen.run(*words, s3.endpoint) == 2
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
    assert seen.run(*words, s3.endpoint) == 2
    profiles.unlink()
    assert seen.places_of(SECRET_KEY, TOKEN, WRONG) == []


@pytest.mark.parametrize(
    "words",
    [
        ["mount", f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket", "{}"],
        ["mount", "s3://bucket", "{}", "--endpoint", f"https://{ACCESS_KEY}:{SECRET_KEY}@host"],
        ["mount", f"https://user:{SECRET_KEY}@host/path", "{}", "--manifest", "/dev/null"],
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(
    tmp_path: Path, words: list[str]
) -> None:
    for background in ([], ["-b"]):
        result = penstock(*(word.format(tmp_path) for word in words), *background)
        assert result.returncode == 2
        assert SECRET_KEY not in result.stdout + result.stderr
        assert "hint: " in result.stderr
