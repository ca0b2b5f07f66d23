"""The interface that an operation gets: its own resource, data sets, secrets, and how to report."""

from pathlib import Path
from typing import Any, Protocol

from penstock.settings import Part
from penstock.specs.resource import Resource


class Work(Protocol):
    @property
    def resource(self) -> Resource:
        """The operation itself, as the model of its kind, with its secrets."""
        ...

    @property
    def folder(self) -> Path:
        """Private folder for journals and output, kept as long as the operation."""
        ...

    def mountpoint(self, name: str, namespace: str) -> Path:
        """Return where a data set is mounted; raises if it is not bound."""
        ...

    def parts(self, name: str, namespace: str) -> tuple[Part, ...]:
        """Return its sources with their keys, to write there or to read without the mount."""
        ...

    def external(self, uri: str, options: dict[str, str]) -> Part:
        """Return a store that is not a data set, with the path ""; raises for a wrong address."""
        ...

    def catalog(self, name: str, namespace: str) -> Path:
        """Return the catalog file of its mount."""
        ...

    def secret(self, namespace: str, name: str, key: str) -> str: ...

    def report(self, progress: dict[str, Any]) -> None:
        """Report progress. Cheap: call it often."""
        ...

    def add_event(self, reason: str, message: str) -> None:
        """Add an event to the operation, for the user to see now."""
        ...
