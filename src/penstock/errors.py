"""Every error Penstock raises on purpose. Each class owns its exit code.

    PenstockError                  1  a bug of ours, or nothing more precise is known
    ├── UsageError                 2  a mistake that the user can fix
    │   ├── OptionError               a bad value, or an option that has no effect here
    │   ├── SourceError               a source that is wrong or cannot be used
    │   ├── MountpointError           missing, not empty, already mounted, busy
    │   ├── CacheDirError             full, read-only, on FUSE, too small
    │   ├── AccessDenied              wrong keys, or no permission
    │   ├── NoSuchPath                a file or folder that is not on the mount
    │   ├── ManifestError             YAML that is not a resource, or one with mistakes
    │   ├── SpecProblem               a resource that no mount can be made from
    │   ├── NoSuchResource            no resource of that name is declared
    │   ├── InUse                     a data set that is being read cannot be deleted
    │   ├── VolumeProblem             a volume that the node plugin must not publish
    │   ├── NoSuchVolume              a folder that no volume is published at
    │   ├── ResultsError              a folder without results of a benchmark
    │   └── PlanError                 an epoch plan that no mount can use
    │       └── NotOnAMount              none of its files lies on one
    ├── StoreError                 3  object storage failed or cannot be reached
    │   ├── ObjectNotFound
    │   └── ObjectChanged             the version we know is gone
    ├── ApiError                   3  the API server of a cluster refused, or cannot be reached
    │   ├── NotFound
    │   ├── Conflict                  changed by another client, or a field that another owns
    │   ├── Gone                      a resource version that the server no longer knows
    │   ├── Forbidden                 no valid credentials, or no right
    │   ├── TooManyRequests
    │   └── Unreachable
    ├── NotServedInTime               a volume whose data set has no server yet
    ├── VolumeBusy                    another request about the volume has not ended
    ├── JobFailed                  4  a training job failed
    ├── CatalogDamaged                being rebuilt from a listing
    └── StaleInode                    an inode of the kernel whose bytes are gone

An error is printed as one line (what and where) and a `hint:` line (what to do).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class PenstockError(Exception):
    exit_code = 1
    default_hint: str | None = None  # for errors without a hint of their own

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint or self.default_hint


class UsageError(PenstockError):
    exit_code = 2


class OptionError(UsageError):
    default_hint = "`penstock mount --help` shows what each option takes"


class SourceError(UsageError):
    default_hint = "check the source; it looks like s3://bucket/prefix or file:///folder"


class MountpointError(UsageError):
    pass


class CacheDirError(UsageError):
    pass


class AccessDenied(UsageError):
    pass


class NoSuchPath(UsageError):
    default_hint = (
        "paths and patterns lie below the mount point; `penstock refresh` lists the bucket"
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a manifest. `where` is FILE:LINE, or FILE alone."""

    where: str
    what: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ManifestError(UsageError):
    """All mistakes in some manifests, so that the user can fix them at once."""

    def __init__(
        self, what: str, *, hint: str | None = None, problems: Sequence[Problem] = ()
    ) -> None:
        super().__init__(what, hint=hint)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> "ManifestError":
        if len(problems) == 1:
            return cls(str(problems[0]), hint=problems[0].hint, problems=problems)
        lines = [f"{len(problems)} mistakes"]
        for problem in problems:
            lines.append(str(problem))
            if problem.hint:
                lines.append(f"  hint: {problem.hint}")
        return cls("\n".join(lines), problems=problems)


class SpecProblem(UsageError):
    """A field that cannot be used. `path` is its place in the manifest: spec.mounts.0.options."""

    default_hint = "`penstock explain` shows what each field takes"

    def __init__(self, path: str, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}: {what}", hint=hint)
        self.path = path
        self.what = what


class NoSuchResource(UsageError):
    pass


class InUse(UsageError):
    default_hint = "end the readers first; --force deletes it while they read"


class VolumeProblem(UsageError):
    """A field of a request about a volume, or an attribute of it, that is not acceptable."""

    default_hint = "the operator writes volumes; `kubectl describe pv` shows their attributes"

    def __init__(self, field: str, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"{field}: {what}", hint=hint)
        self.field = field


class NoSuchVolume(UsageError):
    pass


class ResultsError(UsageError):
    pass


class PlanError(UsageError):
    pass


class NotOnAMount(PlanError):
    default_hint = "`penstock stats` lists what is mounted by you"


class StoreError(PenstockError):
    """A failure of the store. `kind` is the label that retries are counted by."""

    exit_code = 3
    default_hint = "check --endpoint and the network"
    transient = True  # a retry may help

    def __init__(self, what: str, *, hint: str | None = None, kind: str = "other") -> None:
        super().__init__(what, hint=hint)
        self.kind = kind


class ObjectNotFound(StoreError):
    transient = False


class ObjectChanged(StoreError):
    transient = False


class ApiError(PenstockError):
    """A failure of the API server. `status` is that of HTTP, 0 without an answer.

    `reason` is the server's own word (AlreadyExists, Invalid), and `message` its own sentence.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        hint: str | None = None,
        status: int = 0,
        reason: str = "",
        message: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.status = status
        self.reason = reason
        self.message = message or what


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    pass


class Gone(ApiError):
    pass


class Forbidden(ApiError):
    default_hint = "check the credentials, and the roles that are bound to them"


class TooManyRequests(ApiError):
    pass


class Unreachable(ApiError):
    default_hint = "check the API server's address and the network"


class NotServedInTime(PenstockError):
    default_hint = "`kubectl get pods` shows the data set's server pod, NAME-fuse-…, on this node"


class VolumeBusy(PenstockError):
    default_hint = "the kubelet retries by itself"


class JobFailed(PenstockError):
    """The command succeeded, but the training job failed."""

    exit_code = 4


class CatalogDamaged(PenstockError):
    default_hint = "it is rebuilt from a listing; `penstock refresh` does that at once"


class StaleInode(PenstockError):
    pass


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like `name`; None if none is like it.

    Ignores case, `-` and `_`. `cutoff` is the smallest ratio of difflib that counts as alike.
    """
    from difflib import get_close_matches  # only mistakes need it

    known_by_plain = {_plain(one): one for one in known}
    found = get_close_matches(_plain(name), known_by_plain, n=1, cutoff=cutoff)
    return known_by_plain[found[0]] if found else None


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.6
) -> str | None:
    """Return a hint with the nearest known name; `otherwise` if no known name is like `name`."""
    near = nearest(name, known, cutoff=cutoff)
    return otherwise if near is None else f"did you mean {near}?"


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
