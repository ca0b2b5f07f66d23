"""A mount can be changed by nobody, root included: everything that would gives EROFS."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from tests.support.everything import DATA, Mounted
from tests.support.trees import read_tree

Action = Callable[[Path], object]

FILE = "data/n0000/img00000.jpg"


def _through_descriptor(act: Callable[[int], object]) -> Action:
    def open_and_act(root: Path) -> None:
        descriptor = os.open(root / FILE, os.O_RDONLY)
        try:
            act(descriptor)
        finally:
            os.close(descriptor)

    return open_and_act


REFUSED: dict[str, Action] = {
    "open to write": lambda root: os.open(root / FILE, os.O_WRONLY),
    "open to read and write": lambda root: os.open(root / FILE, os.O_RDWR),
    "write text": lambda root: (root / FILE).write_text("new"),
    "append": lambda root: (root / FILE).open("ab"),
    "open and truncate": lambda root: os.open(root / FILE, os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda root: os.truncate(root / FILE, 0),
    "create": lambda root: (root / "data/new").open("xb"),
    "create at the root": lambda root: (root / "new").touch(),
    "create without a name": lambda root: os.open(root / "data", os.O_TMPFILE | os.O_RDWR),
    "make a directory": lambda root: (root / "data/new").mkdir(),
    "make a pipe": lambda root: os.mkfifo(root / "data/new"),
    "make a device": lambda root: os.mknod(root / "data/new", 0o20666, os.makedev(1, 3)),
    "remove a file": lambda root: (root / FILE).unlink(),
    "remove what is not there": lambda root: (root / "none").unlink(),
    "remove a directory": lambda root: (root / "data").rmdir(),
    "rename a file": lambda root: (root / FILE).rename(root / "data/new"),
    "rename over a file": lambda root: (root / FILE).replace(root / "large.bin"),
    "rename a directory": lambda root: (root / "data").rename(root / "new"),
    "link": lambda root: os.link(root / FILE, root / "data/new"),
    "symlink": lambda root: (root / "data/new").symlink_to("empty"),
    "chmod a file": lambda root: (root / FILE).chmod(0o666),
    "chmod a directory": lambda root: (root / "data").chmod(0o777),
    "chmod the root": lambda root: root.chmod(0o777),
    "chown": lambda root: os.chown(root / FILE, 1, 1),
    "utime": lambda root: os.utime(root / FILE, (1, 1)),
    "utime to now": lambda root: os.utime(root / FILE),
    "setxattr": lambda root: os.setxattr(root / FILE, "user.mine", b"1"),
    "setxattr of ours": lambda root: os.setxattr(root / FILE, "user.penstock.version", b"1"),
    "removexattr": lambda root: os.removexattr(root / FILE, "user.penstock.version"),
    "fchmod": _through_descriptor(lambda fd: os.fchmod(fd, 0o666)),
    "fchown": _through_descriptor(lambda fd: os.fchown(fd, 1, 1)),
    "futimens": _through_descriptor(lambda fd: os.utime(fd, (1, 1))),
}

# Refused by the kernel before it looks at the file system, on every file that is open to read.
REFUSED_OTHERWISE: dict[str, tuple[Action, int]] = {
    "write through a descriptor to read": (
        _through_descriptor(lambda fd: os.write(fd, b"1")), errno.EBADF),
    "truncate through a descriptor to read": (
        _through_descriptor(lambda fd: os.ftruncate(fd, 0)), errno.EINVAL),
    "map to write": (
        _through_descriptor(lambda fd: mmap.mmap(fd, 0, prot=mmap.PROT_WRITE)), errno.EACCES),
    "make a directory that is there": (lambda root: (root / "data").mkdir(), errno.EEXIST),
}  # fmt: skip


def errno_of(act: Action, root: Path) -> str | None:
    try:
        act(root)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def test_everything_that_would_change_something_gives_erofs(mounted: Mounted) -> None:
    found = {name: errno_of(act, mounted.path) for name, act in REFUSED.items()}
    assert found == dict.fromkeys(REFUSED, "EROFS")
    assert read_tree(mounted.path / "data") == DATA
    assert sorted(os.listdir(mounted.path)) == ["data", "large.bin", "unread", "wide"]


def test_what_posix_refuses_otherwise_is_refused_so(mounted: Mounted) -> None:
    for name, (act, number) in REFUSED_OTHERWISE.items():
        assert errno_of(act, mounted.path) == errno.errorcode[number], name
