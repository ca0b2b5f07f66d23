"""What a command needs of this machine's environment, and nothing that might be a key."""

import os

_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV",
)  # fmt: skip


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}
