"""The kinds of resources and their names. Pure, and quick to import: no models.

Fluid's kinds are known under its group and under ours; kinds of our own only under ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.errors import ManifestError, did_you_mean

FLUID = "data.fluid.io/v1alpha1"
OURS = "penstock.dev/v1alpha1"

# An annotation: kubectl copies the whole manifest into it, secrets included.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class ResourceKey(NamedTuple):
    """The identity of a resource."""

    kind: str  # as written in a manifest: Dataset
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.namespace}/{self.name}"


Category = Literal["dataset", "runtime", "operation", "job", "secret", "profile"]


@dataclass(frozen=True, slots=True)
class KindInfo:
    kind: str  # as in a manifest: Dataset
    plural: str  # datasets
    short_names: tuple[str, ...]
    groups: tuple[str, ...]  # its apiVersions
    category: Category
    namespaced: bool = True


_BOTH = (FLUID, OURS)
KINDS: Mapping[str, KindInfo] = {
    info.kind: info
    for info in (
        KindInfo("Dataset", "datasets", ("ds",), _BOTH, "dataset"),
        KindInfo("AlluxioRuntime", "alluxioruntimes", ("alluxio",), _BOTH, "runtime"),
        KindInfo("JindoRuntime", "jindoruntimes", ("jindo",), _BOTH, "runtime"),
        KindInfo("JuiceFSRuntime", "juicefsruntimes", ("juicefs",), _BOTH, "runtime"),
        KindInfo("ThinRuntime", "thinruntimes", ("thin",), _BOTH, "runtime"),
        KindInfo("PenstockRuntime", "penstockruntimes", ("penstock",), (OURS,), "runtime"),
        KindInfo("ThinRuntimeProfile", "thinruntimeprofiles", (), _BOTH, "profile", False),
        KindInfo("DataLoad", "dataloads", ("load",), _BOTH, "operation"),
        KindInfo("DataMigrate", "datamigrates", ("migrate",), _BOTH, "operation"),
        KindInfo("DataProcess", "dataprocesses", ("process",), _BOTH, "operation"),
        KindInfo("DataBackup", "databackups", ("backup",), _BOTH, "operation"),
        KindInfo("TrainingJob", "trainingjobs", ("job", "jobs", "tj"), (OURS,), "job"),
        KindInfo("Secret", "secrets", (), ("v1",), "secret"),
    )
}
_GROUP_WORDS: Mapping[str, tuple[Category, ...]] = {
    "runtimes": ("runtime",),
    "runtime": ("runtime",),
    "operations": ("operation",),
    "operation": ("operation",),
    "fluid": ("dataset", "runtime", "operation"),  # as Fluid's own category in kubectl
    # Without Secrets, as in kubectl: a list of everything should be safe to show.
    "all": ("dataset", "runtime", "profile", "operation", "job"),
}


def find_kind(word: str) -> KindInfo:
    """Find a kind by any of its names: `Dataset`, `datasets`, `dataset`, `ds`; case is ignored."""
    if (info := _BY_WORD.get(word.lower().partition(".")[0])) is not None:
        return info
    if word.lower() in _GROUP_WORDS:
        raise ManifestError(f"{word!r} are several kinds", hint=f"name one: {_words(word.lower())}")
    raise _unknown(word)


def find_kinds(word: str) -> list[KindInfo]:
    """Find one or more kinds: also by runtimes, operations, fluid, all, or a list with commas."""
    found: list[KindInfo] = []
    for one in word.split(","):
        if categories := _GROUP_WORDS.get(one.strip().lower()):
            found += [info for info in KINDS.values() if info.category in categories]
        else:
            found.append(find_kind(one.strip()))
    return list(dict.fromkeys(found))


def _by_word() -> dict[str, KindInfo]:
    return {
        word: info
        for info in KINDS.values()
        for word in (info.kind.lower(), info.plural, *info.short_names)
    }


_BY_WORD = _by_word()


def _unknown(word: str) -> ManifestError:
    plurals = [info.plural for info in KINDS.values()]
    words = [*(info.kind.lower() for info in KINDS.values()), *plurals, *_GROUP_WORDS]
    hint = did_you_mean(word, words, f"kinds: {', '.join(plurals)}")
    return ManifestError(f"{word!r} is not a kind of resource", hint=hint)


def _words(group: str) -> str:
    categories = _GROUP_WORDS[group]
    return ", ".join(info.plural for info in KINDS.values() if info.category in categories)
