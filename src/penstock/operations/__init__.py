"""Data operations: what DataLoad, DataMigrate, DataProcess and DataBackup do.

Charter: each is one function that gets its `Work`, blocks until it is done, and may be killed
anywhere: begun again, it finds by looking how far it was. It knows nothing of the loop that
starts it, and nothing of how state is kept.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.operations.work import Work


def _later(module: str) -> "Callable[[Work], dict[str, Any]]":
    """The loop, which only asks what is due, need not wait for the import of stores."""

    def run(work: "Work") -> dict[str, Any]:
        return import_module(f"{__name__}.{module}").run(work)

    return run


RUN: "Mapping[str, Callable[[Work], dict[str, Any]]]" = {
    "DataLoad": _later("load"),
    "DataMigrate": _later("migrate"),
    "DataProcess": _later("process"),
    "DataBackup": _later("backup"),
}
