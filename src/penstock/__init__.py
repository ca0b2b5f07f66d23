"""Penstock feeds training jobs from object storage at the speed of the page cache."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.release import __version__

if TYPE_CHECKING:
    from penstock.api.jobs import TrainingJob, submit
    from penstock.api.manifests import validate
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
    )

__all__ = [
    "Dataset",
    "Declared",
    "Operation",
    "TrainingJob",
    "__version__",
    "apply",
    "dataset",
    "delete",
    "describe",
    "get",
    "get_all",
    "load",
    "submit",
    "up",
    "validate",
]
_ELSEWHERE = {"TrainingJob": "jobs", "submit": "jobs", "validate": "manifests"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import `penstock.apply` and the like when first used: a server needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(f"penstock.api.{_ELSEWHERE.get(name, 'resources')}"), name)
