"""Run a process that sees data sets at other places, while other processes do not.

The process gets a mount namespace of its own, in which each source is bound to its target,
read-only. Root makes one directly; other users make it inside a user namespace in which they keep
their uid. Where a target does not exist, no folder is made on the machine: the nearest existing
folder above it is covered by a small tmpfs that shows everything in that folder, and the target
besides; no file can be created directly in it. This is a view, not isolation: it protects nothing.

`run_with_data` starts this module as a program (`python -m penstock.reconcile.mount_namespace
PAYLOAD REPORT`), which makes the namespace and then becomes the command. It is a program of its own
because a process with threads can do almost nothing safely between fork and exec; and since it has
one thread, it enters the namespace as a whole.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from penstock.environment import without_keys
from penstock.errors import UsageError
from penstock.mounttable import FILESYSTEM_TYPE, mount_table


def run_with_data(
    argv: Sequence[str],
    binds: Sequence[tuple[Path, Path]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
) -> "subprocess.Popen[bytes]":
    """Start the command, and return once it runs with all its folders in place.

    Raises UsageError if it cannot. The process dies with the thread that started it. Its stderr
    goes where its stdout goes. `cwd` is resolved as the process sees the folders.
    """
    payload = {
        "argv": list(argv),
        "binds": [[str(source), str(target)] for source, target in binds],
        "env": dict(env),
        "cwd": None if cwd is None else str(cwd),
        "parent": os.getpid(),
    }
    # In a memory file: every user can read arguments, and the command its own environment.
    descriptor = os.memfd_create("penstock-process", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(payload).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    reader, writer = os.pipe()
    try:
        child = subprocess.Popen(
            [
                sys.executable,
                "-Pm",
                "penstock.reconcile.mount_namespace",
                str(descriptor),
                str(writer),
            ],
            pass_fds=(descriptor, writer),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=without_keys(os.environ),
        )
    finally:
        os.close(writer)
        os.close(descriptor)
    with os.fdopen(reader, "rb") as report:
        failure = report.read()  # end of file: the program has become the command
    if failure:
        child.wait()
        error = json.loads(failure)
        raise UsageError(error["what"], hint=error["hint"])
    return child


_libc = ctypes.CDLL(None, use_errno=True)

# CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID
_NEW_MOUNTS, _NEW_USER, _NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
_READ_ONLY, _REMOUNT, _BIND, _REC, _SLAVE = 1, 32, 4096, 16384, 1 << 19  # MS_…
_NO_SUID, _NO_DEV, _NO_EXEC = 2, 4, 8
_DETACH = 2  # MNT_DETACH
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
# Flags to repeat when a bind mount is remounted read-only: those that are locked must be kept.
_KEPT = {
    os.ST_NOSUID: _NO_SUID, os.ST_NODEV: _NO_DEV, os.ST_NOEXEC: _NO_EXEC,
    os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048, os.ST_RELATIME: 1 << 21,
}  # fmt: skip
# Each name in the covered folder costs a mount.
_MOST_NAMES = 1000
_FOLDER, _LINK, _FILE = range(3)
# A mount without a server, or a name that was removed meanwhile, is shown empty.
_GONE = (errno.ENOENT, errno.EACCES, errno.ENOTCONN, errno.ESTALE)
_DECLARED = "dataset/"  # in the mount table their sources are dataset/NAMESPACE/NAME


class Cannot(Exception):
    def __init__(self, what: str, hint: str | None) -> None:
        super().__init__(what)
        self.hint = hint


def bind_all(binds: Sequence[tuple[str, str]]) -> None:
    """Bind each (source, target), and unmount other data sets, so as not to keep them busy."""
    normal = [(source, os.path.normpath(target)) for source, target in binds]
    for source, target in sorted(normal, key=lambda bind: bind[1].count("/")):
        _bind(source, target)
    _unmount_others([target for _, target in normal])


def hide_all(files: Sequence[str]) -> None:
    """Make each file look empty.

    Root can unmount the cover. This stops programs that read whatever they find, not an attacker.
    """
    for file in files:
        _mount("/dev/null", file, _BIND)


def enter(*, pids: bool = False) -> None:
    """Enter a new mount namespace.

    `pids`: and a new PID namespace for the children of this process. The first child is PID 1, and
    the kernel kills all others when it ends.
    """
    more = _NEW_PIDS if pids else 0
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 or not _try(_libc.unshare(_NEW_MOUNTS | more)):
        if not _try(_libc.unshare(_NEW_USER | _NEW_MOUNTS | more)):
            raise Cannot(
                f"no mount namespace can be made here ({os.strerror(ctypes.get_errno())})",
                "run it as root, or allow user namespaces to users: sysctl "
                "user.max_user_namespaces, kernel.unprivileged_userns_clone=1 and "
                "kernel.apparmor_restrict_unprivileged_userns=0; a container needs CAP_SYS_ADMIN",
            )
        # Map uid and gid to themselves; the user's other groups cannot be mapped.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    # Slave: unmounts on the machine are seen here, mounts made here are not seen outside.
    _mount(None, "/", _REC | _SLAVE)


def mount_proc() -> None:
    """Mount a /proc of the PID namespace.

    Where that is not permitted (a container that hides parts of /proc) the existing one stays, and
    shows the machine's process ids.
    """
    flags = _NO_SUID | _NO_DEV | _NO_EXEC
    _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(flags), None)


def _bind(source: str, target: str) -> None:
    if not os.path.isdir(source):
        raise Cannot(f"{source} is not a folder", "check subPath")
    if os.path.lexists(target) and not os.path.isdir(target):
        raise Cannot(f"{target} is a file of this machine", "choose another mountPath")
    if not os.path.isdir(target):
        _show_with(target, source)
        return
    _bind_read_only(source, target)


def _bind_read_only(source: str, target: str) -> None:
    _mount(source, target, _BIND)
    flags = os.statvfs(target).f_flag
    kept = sum(bit for known, bit in _KEPT.items() if flags & known)
    _mount(None, target, _REMOUNT | _BIND | _READ_ONLY | kept)


def _show_with(target: str, source: str) -> None:
    """Cover the nearest folder above the target with a view of itself that also has the target."""
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        if os.path.lexists(above):
            raise Cannot(f"{above} is a file of this machine", "choose another mountPath")
        above = os.path.dirname(above)
    above = os.path.realpath(above)
    with os.scandir(above) as entries:  # entry types come from readdir: no stat of dead mounts
        names = {entry.name: _kind(entry) for entry in entries}
    if len(names) > _MOST_NAMES:
        raise Cannot(
            f"{target} does not exist, and {above} holds {len(names):,} names",
            f"make the folder: mkdir -p {target}",
        )
    folder, held = _open(above), f"/proc/self/fd/{_open(source)}"
    if above != "/":
        with _covered(above, folder):
            _fill(folder, above, names)
            os.makedirs(target)
            _bind_read_only(held, target)
        return
    # The root cannot be covered, only replaced: the new one is built on one of its folders.
    stage = "/tmp" if names.get("tmp") == _FOLDER else f"/{_first_folder(names)}"
    hidden = _open(stage)
    with _covered(stage, folder):
        _fill(folder, stage, names, stage[1:], hidden)
        os.makedirs(stage + target)
        _bind_read_only(held, stage + target)
    _change_root(stage)


def _open(folder: str) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return _LINK
    return _FOLDER if entry.is_dir(follow_symlinks=False) else _FILE


def _first_folder(names: dict[str, int]) -> str:
    return next(name for name in names if names[name] == _FOLDER)


@contextlib.contextmanager
def _covered(place: str, like: int) -> Iterator[None]:
    """Mount a tmpfs over a folder; read-only afterwards, since new files in it would be lost."""
    status = os.fstat(like)
    mode = stat.S_IMODE(status.st_mode)
    _mount("tmpfs", place, _NO_DEV, "tmpfs", f"mode={mode:o},size=1m")
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError, OSError):  # the owner's uid is not mapped inside
            os.chown(place, status.st_uid, status.st_gid)
    yield
    _mount(None, place, _REMOUNT | _BIND | _READ_ONLY | _NO_DEV)


def _fill(
    folder: int, place: str, names: dict[str, int], covered: str = "", hidden: int = -1
) -> None:
    """Show each name of `folder` in `place`.

    `covered`: a name that is reachable only through the descriptor `hidden`.
    """
    for name, kind in sorted(names.items(), key=lambda one: one[0] != covered):
        here, there = f"{place}/{name}", f"/proc/self/fd/{folder}/{name}"
        if kind == _LINK:
            os.symlink(os.readlink(there), here)
            continue
        if kind == _FOLDER:
            os.mkdir(here)
        else:
            os.close(os.open(here, os.O_CREAT | os.O_WRONLY, 0o600))
        try:
            if name == covered:
                _mount(f"/proc/self/fd/{hidden}", here, _BIND | _REC)
                _libc.umount2(os.fsencode(here), _DETACH)  # remove the cover, which was bound too
            else:
                _mount(there, here, _BIND | _REC)
        except OSError as error:
            if error.errno not in _GONE:
                raise


def _change_root(place: str) -> None:
    os.chdir(place)
    number = _PIVOT_ROOT.get(platform.machine())
    # `.` twice: pivot_root stacks the old root on the new one, and it is unmounted from there.
    if number is not None and _try(_libc.syscall(number, b".", b".")):
        _libc.umount2(b".", _DETACH)
        os.chdir("/")
        return
    os.chroot(".")  # pivot_root fails on an initial ramdisk


def _unmount_others(targets: list[str]) -> None:
    """Unmount other declared data sets in this namespace, where their copies would keep them busy.

    Mounts that were made by hand stay visible.
    """
    for entry in mount_table():
        inside = any(
            entry.mountpoint == target or entry.mountpoint.startswith(f"{target}/")
            for target in targets
        )
        if entry.kind == FILESYSTEM_TYPE and entry.source.startswith(_DECLARED) and not inside:
            _libc.umount2(os.fsencode(entry.mountpoint), _DETACH)  # may fail


def _mount(
    source: str | None, target: str, flags: int, kind: str | None = None, data: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    if not _try(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])):
        number = ctypes.get_errno()
        if number == errno.EPERM and flags & _REMOUNT:
            raise Cannot(f"{target} cannot be made read-only here", "run it as root")
        raise OSError(number, os.strerror(number), target)


def _try(result: int) -> bool:
    return result == 0


def main() -> NoReturn:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        payload: dict[str, Any] = json.load(file)
    report = int(sys.argv[2])
    os.set_inheritable(report, False)
    try:
        _become(payload)
    except Cannot as error:
        failure = {"what": str(error), "hint": error.hint}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        failure = {"what": f"{where}{error.strerror}", "hint": None}
    os.write(report, json.dumps(failure).encode())
    os._exit(126)


def _become(payload: dict[str, Any]) -> NoReturn:
    enter()
    bind_all(payload["binds"])
    os.chdir(payload["cwd"] or "/")
    die_with(payload["parent"])
    # Python ignores these signals, and exec would keep them ignored.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    argv: list[str] = payload["argv"]
    try:
        os.execvpe(argv[0], argv, payload["env"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Cannot(
            f"{argv[0]}: no such command", "images are not used here: install it on this machine"
        ) from error


def die_with(parent: int) -> None:
    # Last: entering a user namespace clears the setting.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(126)


if __name__ == "__main__":
    main()
