"""What is collected while a resource is translated. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.specs.effects import NoEffect


@dataclass(slots=True)
class Said:
    """What has no effect, and what a person should know, of one resource."""

    without_effect: list[NoEffect] = field(default_factory=list[NoEffect])
    notes: list[str] = field(default_factory=list[str])

    def no_effect(self, path: str, reason: str) -> None:
        found = NoEffect(path, reason)
        if found not in self.without_effect:
            self.without_effect.append(found)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class Written:
    """A map of options, with the place in the manifest where each was written."""

    values: Mapping[str, str]
    paths: Mapping[str, str]

    @classmethod
    def at(cls, path: str, values: Mapping[str, str] | None) -> "Written":
        return cls(values or {}, {name: f"{path}.{name}" for name in values or {}})

    def over(self, other: "Written") -> "Written":
        """Both; where a name is in both, this one's."""
        return Written({**other.values, **self.values}, {**other.paths, **self.paths})
