"""Which mounts of data sets are served at this moment."""

from collections.abc import Callable
from pathlib import Path

from penstock.daemon.registry import all_notes
from penstock.mounttable import mount_table
from penstock.specs.kinds import ResourceKey

Served = Callable[[Path, ResourceKey], bool]


def served_mounts() -> Served:
    """Looks at the mount table once for all of them."""
    mounted = {entry.mountpoint for entry in mount_table() if entry.kind.startswith("fuse")}
    noted = {note.mountpoint: note for note in all_notes()}

    def is_served(mountpoint: Path, key: ResourceKey) -> bool:
        note = noted.get(str(mountpoint))
        return (
            str(mountpoint) in mounted
            and note is not None
            and note.source == str(key)
            and bool(note.processes)
        )

    return is_served
