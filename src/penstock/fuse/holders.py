"""Find the processes that keep a mount busy, from /proc.

It never touches the mount itself, which may be dead or hang: it reads only /proc, and reads links
there as text, without following them.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from penstock import procfs
from penstock.mounttable import MountEntry, find_mount, mount_table

_COMMAND_CHARACTERS = 60
_MOST_LINES = 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses a mount."""

    pid: int
    command: str
    user: str
    usage: str  # "2 open files, cwd"

    def __str__(self) -> str:
        return f"pid {self.pid}  {self.command}  ({self.user})  {self.usage}"


@dataclass(frozen=True, slots=True)
class Holders:
    processes: list[Holder]
    mounted_inside: list[str]  # other mounts inside this one keep it busy too
    unreadable: int  # processes that could not be inspected, mostly of other users

    def lines(self) -> list[str]:
        """Describe each holder in a line."""
        lines = [str(holder) for holder in self.processes[:_MOST_LINES]]
        if len(self.processes) > _MOST_LINES:
            lines.append(f"and {len(self.processes) - _MOST_LINES} more processes")
        lines += [f"{path} is mounted inside it" for path in self.mounted_inside[:_MOST_LINES]]
        # In a container even root cannot inspect all processes; mention those only if nothing else
        # was found.
        if self.unreadable and (os.geteuid() != 0 or not lines):
            what = "es" if self.unreadable > 1 else ""
            lines.append(f"perhaps one of {self.unreadable} process{what} that you may not inspect")
        return lines


def holders(mountpoint: Path, *, skip_self: bool = True) -> Holders:
    """Return the processes that use the mount at exactly this path; none if nothing is mounted
    there."""
    entry = find_mount(mountpoint)
    if entry is None:
        return Holders([], [], 0)
    found: list[Holder] = []
    unreadable = 0
    for pid in procfs.pids():
        if skip_self and pid == os.getpid():
            continue  # the caller may have inherited an open file, and is about to end
        try:
            usage = _usage_of(pid, entry)
        except PermissionError:
            unreadable += bool(procfs.command_line(pid))  # kernel threads have no arguments
            continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if usage:
            found.append(Holder(pid, _command(pid), _user(pid), usage))
    inside = [other.mountpoint for other in mount_table() if other.parent_id == entry.mount_id]
    return Holders(found, inside, unreadable)


def mount_copies(device: str) -> list[Holder]:
    """Return a process of each other mount namespace that has a mount of this device."""
    namespaces = {os.readlink("/proc/self/ns/mnt")}
    found: list[Holder] = []
    for pid in procfs.pids():
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace in namespaces:
                continue
            namespaces.add(namespace)
            if any(entry.device == device for entry in mount_table(pid)):
                found.append(Holder(pid, _command(pid), _user(pid), "a copy in its namespace"))
        except OSError:
            continue  # it has ended meanwhile, or may not be inspected
    return found


def _usage_of(pid: int, entry: MountEntry) -> str:
    if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
        return ""  # in another namespace: it holds a copy of this mount
    ways: list[str] = []
    if files := _open_files(pid, entry.mount_id):
        ways.append(f"{files} open file{'s' if files > 1 else ''}")
    ways += [
        name
        for name, link in (("cwd", "cwd"), ("root", "root"), ("program", "exe"))
        if _lies_in(_read_link(f"/proc/{pid}/{link}"), entry.mountpoint)
    ]
    if mapped := _mapped_files(pid, entry.device):
        ways.append(f"{mapped} mapped file{'s' if mapped > 1 else ''}")
    return ", ".join(ways)


def _open_files(pid: int, mount_id: int) -> int:
    count = 0
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}", "rb") as lines:
                count += any(
                    line.startswith(b"mnt_id:") and int(line.split()[1]) == mount_id
                    for line in lines
                )
        except FileNotFoundError:
            continue  # closed meanwhile
    return count


def _mapped_files(pid: int, device: str) -> int:
    """Count mapped files: a mapping keeps the mount busy after the descriptor is closed."""
    major, minor = map(int, device.split(":"))
    wanted = f"{major:02x}:{minor:02x}".encode()
    inodes: set[bytes] = set()
    with open(f"/proc/{pid}/maps", "rb") as lines:
        for line in lines:
            _, _, _, where, inode = line.split(maxsplit=5)[:5]
            if where == wanted:
                inodes.add(inode)
    return len(inodes)


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""  # kernel threads run no program


def _lies_in(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(f"{mountpoint.rstrip('/')}/")


def _command(pid: int) -> str:
    """Return the command line on one line: `python train.py --lr 3`, the program without its
    folder."""
    arguments = [word.decode("utf-8", "backslashreplace") for word in procfs.command_line(pid)]
    arguments = arguments or ["?"]
    text = " ".join([arguments[0].rpartition("/")[2] or arguments[0], *arguments[1:]])
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _COMMAND_CHARACTERS else text[: _COMMAND_CHARACTERS - 1] + "…"


def _user(pid: int) -> str:
    """Return the user's name, from the process's status: the /proc folder of a process that hides
    its memory belongs to root."""
    uids = procfs.status(pid).get("Uid")
    if uids is None:  # it has ended meanwhile
        return "?"
    uid = int(uids.split()[0])
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
