"""Which source a place of the tree belongs to, where several are mounted. Pure.

Paths are below the mount point, without slashes at their ends; "" is all of it. Of two that lie in
one another the deeper one has what is below it, and hides what the other has there.
"""

from collections.abc import Mapping

from penstock.catalog.names import why_no_name
from penstock.errors import OptionError

NOBODY = -1


def check_paths(paths: list[str]) -> None:
    for path in paths:
        for name in path.split("/") if path else []:
            if why := why_no_name(name):
                raise OptionError(f"{path!r} is no path below a mount point: {why}")
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        raise OptionError(f"two sources are to be mounted at {twice[0] or '/'!r}")


def owner_of(path: str, numbers: Mapping[str, int]) -> tuple[int, str]:
    """Whose directory this is, and its path inside that one."""
    above = path
    while above not in numbers:
        if not above:
            return NOBODY, ""
        above = above.rpartition("/")[0]
    return numbers[above], path[len(above) :].lstrip("/")


def covered_by_others(path: str, others: list[str]) -> list[str]:
    """What lies below `path` and is hidden by what is mounted there, as paths inside it."""
    start = f"{path}/" if path else ""
    return sorted(
        other[len(start) :] for other in others if other != path and other.startswith(start)
    )
