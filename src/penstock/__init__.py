"""Penstock feeds training jobs from object storage at the speed of the page cache."""

from typing import TYPE_CHECKING, Any

from penstock.release import __version__

if TYPE_CHECKING:
    from penstock.api.resources import (
        Dataset,
        Declared,
        Operation,
        apply,
        dataset,
        delete,
        describe,
        get,
        get_all,
        load,
        up,
        validate,
    )

__all__ = [
    "Dataset",
    "Declared",
    "Operation",
    "__version__",
    "apply",
    "dataset",
    "delete",
    "describe",
    "get",
    "get_all",
    "load",
    "up",
    "validate",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """`penstock.apply` and the like, imported when first asked for: a server needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from penstock.api import resources

    return getattr(resources, name)
