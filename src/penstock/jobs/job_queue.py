"""Which jobs may start: GPUs and cores are allotted. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Who may start: GPUs and cores are allotted, first come first served within a priority. Pure.
#
# Nobody overtakes: while one waits for GPUs, none that comes after it gets any, even if it needs
# fewer; or one that needs many would wait for ever. Who needs none of what is short starts.

TOO_MANY = "this machine has"  # of one that can never start as it is


@dataclass(frozen=True, slots=True)
class Waiting:
    name: str
    order: tuple[float, str]  # when it was created; its uid, for two of the same moment
    priority: int = 0
    gpus: int = 0
    cores: float = 0.0  # 0: it did not say


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that was allotted something, and has not given it back."""

    name: str
    gpus: tuple[int, ...] = ()
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    gpus: tuple[int, ...] | None  # which; None: it has to wait
    why: str = ""


def decide(
    waiting: Iterable[Waiting], holding: Sequence[Holding], gpus: Sequence[int], cores: float
) -> Mapping[tuple[float, str], Verdict]:
    """By the order of each. `gpus` and `cores` are all that the machine has."""
    held = list(holding)
    queues: dict[str, str] = {}  # what is short: who waits for it, first
    verdicts: dict[tuple[float, str], Verdict] = {}
    for one in sorted(waiting, key=lambda one: (-one.priority, one.order)):
        why = _why_gpus(one, held, gpus, queues) or _why_cores(one, held, cores, queues)
        if why is not None:
            verdicts[one.order] = Verdict(None, why)
            continue
        taken = {device for other in held for device in other.gpus}
        mine = tuple([device for device in gpus if device not in taken][: one.gpus])
        held.append(Holding(one.name, mine, one.cores))
        verdicts[one.order] = Verdict(mine)
    return verdicts


def _why_gpus(
    one: Waiting, held: Sequence[Holding], gpus: Sequence[int], queues: dict[str, str]
) -> str | None:
    if not one.gpus:
        return None
    wanted = f"waits for {_count(one.gpus, 'GPU')}"
    if "gpus" in queues:
        return f"{wanted}; job {queues['gpus']} is before it"
    taken = {device for other in held for device in other.gpus}
    if one.gpus <= len(set(gpus) - taken):
        return None
    queues["gpus"] = one.name
    if one.gpus > len(gpus):
        return f"{wanted}; {TOO_MANY} {len(gpus)}"
    return f"{wanted}; {_have([other.name for other in held if other.gpus])}"


def _why_cores(
    one: Waiting, held: Sequence[Holding], cores: float, queues: dict[str, str]
) -> str | None:
    if not one.cores:
        return None
    wanted = f"waits for {_count(one.cores, 'core')}"
    if "cores" in queues:
        return f"{wanted}; job {queues['cores']} is before it"
    # One that wants more than there are gets all of them, when nobody else has any.
    free = cores - sum(other.cores for other in held)
    if min(one.cores, cores) <= free + 1e-9:
        return None
    queues["cores"] = one.name
    return f"{wanted}; {_have([other.name for other in held if other.cores])}"


def _have(names: list[str]) -> str:
    if len(names) == 1:
        return f"taken by job {names[0]}"
    return f"taken by jobs {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}" + ("" if number == 1 else "s")
