"""rclone's servers over a folder: S3 with options of its own, WebDAV, plain HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.workspace import find_program, free_port
from tests.support.processes import running

# With every kind of name and size that a source of files may hold.
FILES = {
    "a.txt": b"hello\n",
    "deep/er/f 1.txt": b"deep\n",
    "deep/ünï&co.txt": "ü".encode(),
    "zero": b"",
    "large.bin": bytes(range(256)) * 4096 + b"an odd end",
}


@contextmanager
def rclone_serves(
    kind: str, folder: Path, *options: str | Path, port: int | None = None
) -> Iterator[str]:
    """`rclone serve KIND`; gives host:port. It caches nothing of the folder."""
    port = port or free_port()
    command = [find_program("rclone"), "serve", kind, folder, f"--addr=127.0.0.1:{port}"]
    command += ["--config=/dev/null", "--dir-cache-time=0s", "--poll-interval=0", *options]
    with running(command, port):
        yield f"127.0.0.1:{port}"
