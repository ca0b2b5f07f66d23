"""Data operations: DataLoad, DataMigrate, DataProcess and DataBackup.

    schedule, lifecycle    when an operation starts, retries and is removed
    main                   the process of one operation
    load, migrate, process, backup    run(work) of each kind
    locations, copying, migration_journal    parts of a migration

Charter: each kind is one function that gets its `Work` and blocks until it is done. It may be
killed at any time; started again, it finds out by itself how far it had come. It knows neither the
loop that starts it nor how state is stored.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.operations.work import Work


def _lazy(module: str) -> "Callable[[Work], dict[str, Any]]":
    """Import the module when it runs: the loop only decides what is due, and needs no stores."""

    def run(work: "Work") -> dict[str, Any]:
        return import_module(f"{__name__}.{module}").run(work)

    return run


RUN: "Mapping[str, Callable[[Work], dict[str, Any]]]" = {
    "DataLoad": _lazy("load"),
    "DataMigrate": _lazy("migrate"),
    "DataProcess": _lazy("process"),
    "DataBackup": _lazy("backup"),
}
