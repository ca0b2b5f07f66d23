"""What an operation gets to see of the rest."""

from pathlib import Path
from typing import Any, Protocol

from penstock.settings import Part
from penstock.specs.resource import Resource


class Work(Protocol):
    @property
    def resource(self) -> Resource:
        """The operation itself, as its kind's model; secrets in place."""
        ...

    @property
    def folder(self) -> Path:
        """Private, and kept for as long as the operation is: journals, output."""
        ...

    def mountpoint(self, name: str, namespace: str) -> Path:
        """Where that data set is mounted; raises if it is not bound."""
        ...

    def parts(self, name: str, namespace: str) -> tuple[Part, ...]:
        """Where its data is, with keys: to write there, or to read past the mount."""
        ...

    def external(self, uri: str, options: dict[str, str]) -> Part:
        """A store that is no data set; its path is "". Raises for one that nobody can open."""
        ...

    def catalog(self, name: str, namespace: str) -> Path:
        """The catalog's file of that data set's mount."""
        ...

    def secret(self, namespace: str, name: str, key: str) -> str: ...

    def report(self, progress: dict[str, Any]) -> None:
        """How far it is. Cheap: call it often."""
        ...

    def tell(self, reason: str, message: str) -> None:
        """Something a person should see in the operation's events, now."""
        ...
