"""Finds the file behind each index of a data set, by its attributes alone: imports nothing, calls
nothing of the data set but `len`, and touches no file.

Knows torchvision's ImageFolder and DatasetFolder, and any data set that keeps its files in a list
of one of their names; looks through Subset and ConcatDataset. Pure; any thread.
"""

import os
from collections.abc import Sequence
from typing import Any, cast

from penstock.errors import PlanError

ATTRIBUTES = ("samples", "imgs", "files", "paths")


class NoFiles(PlanError):
    """The files behind the indices are unknown; the message says why."""

    default_hint = f"give it a list of its files as `{'`, `'.join(ATTRIBUTES)}`"


def files_of(dataset: object) -> list[str]:
    """Return the path of each index, in the order of indices; raise NoFiles."""
    name = type(dataset).__name__
    reason = f"{name} does not tell which files its samples are"
    for attribute in ATTRIBUTES:
        files = _paths_in(getattr(dataset, attribute, None))
        if files is None:
            continue
        length = _length(dataset)
        if length == len(files):
            return files
        reason = (
            f"{name} has {'no length' if length is None else f'{length:,} samples'}, "
            f"but {len(files):,} files in `{attribute}`"
        )
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, list | tuple) and parts:  # ConcatDataset
        return [path for part in cast(Sequence[object], parts) for path in files_of(part)]
    below, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if below is not None and indices is not None:  # Subset
        return _chosen(files_of(below), indices, name)
    raise NoFiles(reason)


def _chosen(files: list[str], indices: Any, name: str) -> list[str]:
    try:
        return [files[int(index)] for index in indices]
    except (TypeError, ValueError, IndexError) as error:
        raise NoFiles(f"{name} chooses samples that its data set does not have") from error


def _paths_in(values: Any) -> list[str] | None:
    """Return the paths; None if these are not all paths, or tuples that begin with one."""
    if hasattr(values, "tolist"):  # an array of names, which forked workers share without copies
        values = values.tolist()
    if not isinstance(values, list | tuple) or not values:
        return None
    files: list[str] = []
    for value in cast(Sequence[Any], values):
        first: Any = value[0] if type(value) in (list, tuple) and value else value
        if type(first) is not str:  # of a million, nearly all are
            if not isinstance(first, str | bytes | os.PathLike):
                return None
            first = os.fsdecode(cast("str | bytes | os.PathLike[str]", first))
        files.append(first)
    return files


def _length(dataset: object) -> int | None:
    try:
        return len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
