"""Loads the data sets of a job before it starts. Begun again, it passes over what is cached."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.daemon.warming import Warming, Wish
from penstock.errors import StoreError
from penstock.units import format_size


def load_first(
    places: Iterable[tuple[str, Path, str]], tell: Callable[[str], None],
    note: Callable[[str], None],
) -> None:  # fmt: skip
    """(name, mount point, path below it) of each. `tell` gets how far it is, often; `note` what
    should be remembered."""
    for name, mountpoint, below in places:

        def progress(told: dict[str, Any], name: str = name) -> None:
            total = told["bytes"]
            share = 100 * told.get("done_bytes", 0) // total if total else 0
            tell(f"loading {name}: {min(share, 99)}%")

        def started(told: dict[str, Any], name: str = name) -> None:
            if not told["fits"]:
                note(
                    f"{name}: {format_size(told['bytes'])} are more than the cache holds; about "
                    f"{format_size(told['fitting_bytes'])} will fit"
                )

        tell(f"loading {name}")
        with Warming(mountpoint, Wish(started=started, progress=progress)) as warming:
            if below:
                warming.add_patterns([below])
            answer = warming.run()
        if answer["failed_files"]:
            first = answer["failures"][0]
            raise StoreError(
                f"{answer['failed_files']:,} of {answer['files']:,} files of {name} could not be "
                f"loaded; {first['path']}: {first['why']}",
                hint="applied again, it goes on where it was",
            )
