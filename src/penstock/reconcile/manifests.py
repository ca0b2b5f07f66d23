"""Read the manifests that `-f FILE|DIR|-` names."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.errors import ManifestError, Problem, UsageError
from penstock.specs.documents import Document, decode, read_each

_ENDINGS = (".yaml", ".yml", ".json")
_LARGEST_BYTES = 16 << 20  # a larger file is data, not a manifest


def read_manifests(names: Sequence[str], *, namespace: str = "default") -> list[Document]:
    """Return every resource in them. Raises one ManifestError with every problem."""
    documents, problems = look_at_manifests(names, namespace=namespace)
    if problems:
        raise ManifestError.of(problems)
    return documents


def look_at_manifests(
    names: Sequence[str], *, namespace: str = "default"
) -> tuple[list[Document], list[Problem]]:
    """Return the valid resources, and the problems of the others."""
    problems: list[Problem] = []
    documents = list(read_each(_texts(names, problems), problems, namespace=namespace))
    return documents, problems


def _texts(names: Sequence[str], problems: list[Problem]) -> Iterator[tuple[str, str]]:
    for file, data in _files(names):
        try:
            yield decode(data, file), file
        except ManifestError as error:
            problems.extend(error.problems)


def _files(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if name == "-":
            yield "<stdin>", _check_size(sys.stdin.buffer.read(_LARGEST_BYTES + 1), "<stdin>")
            continue
        if not name:  # an unset shell variable; its Path would be the current folder
            raise UsageError("a manifest without a name", hint="name a file, a folder or -")
        path = Path(name)
        try:
            if not path.is_dir():
                yield name, _read(path)
                continue
            found = sorted(one for one in path.iterdir() if one.suffix in _ENDINGS)
            if not found:
                raise UsageError(
                    f"{name} holds no manifest", hint=f"they end in {', '.join(_ENDINGS)}"
                )
            for one in found:
                yield str(one), _read(one)
        except OSError as error:
            raise UsageError(
                f"{error.filename or name}: {error.strerror}", hint="name a file, a folder or -"
            ) from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return _check_size(file.read(_LARGEST_BYTES + 1), str(path))


def _check_size(data: bytes, file: str) -> bytes:
    if len(data) > _LARGEST_BYTES:
        raise UsageError(f"{file} is too large for a manifest", hint="is it the right file?")
    return data
