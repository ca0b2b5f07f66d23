"""Which jobs may start: allot GPUs and cores by priority, then by age. Pure.

No job overtakes another: while one waits for GPUs, no later job gets any, even if it needs fewer;
otherwise a job that needs many would wait forever. A job that needs none of the resource that is
short starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOO_MANY = "this machine has"  # in the message of a job that can never start as it is


@dataclass(frozen=True, slots=True)
class Waiting:
    name: str
    order: tuple[float, str]  # creation time; the uid breaks ties
    priority: int = 0
    gpus: int = 0
    cores: float = 0.0  # 0: not specified


@dataclass(frozen=True, slots=True)
class Holding:
    """A job with GPUs and cores that it has not released yet."""

    name: str
    gpus: tuple[int, ...] = ()
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    gpus: tuple[int, ...] | None  # which; None: the job has to wait
    why: str = ""


def decide(
    waiting: Iterable[Waiting], holding: Sequence[Holding], gpus: Sequence[int], cores: float
) -> Mapping[tuple[float, str], Verdict]:
    """Return a verdict for each waiting job, by its order.

    `gpus` and `cores`: all that the machine has.
    """
    held = list(holding)
    first: dict[str, str] = {}  # for each resource that is short: the first job that waits for it
    verdicts: dict[tuple[float, str], Verdict] = {}
    for one in sorted(waiting, key=lambda one: (-one.priority, one.order)):
        why = _why_gpus(one, held, gpus, first) or _why_cores(one, held, cores, first)
        if why is not None:
            verdicts[one.order] = Verdict(None, why)
            continue
        taken = {device for other in held for device in other.gpus}
        mine = tuple([device for device in gpus if device not in taken][: one.gpus])
        held.append(Holding(one.name, mine, one.cores))
        verdicts[one.order] = Verdict(mine)
    return verdicts


def _why_gpus(
    one: Waiting, held: Sequence[Holding], gpus: Sequence[int], first: dict[str, str]
) -> str | None:
    if not one.gpus:
        return None
    wanted = f"waits for {_count(one.gpus, 'GPU')}"
    if "gpus" in first:
        return f"{wanted}, behind job {first['gpus']}"
    taken = {device for other in held for device in other.gpus}
    if one.gpus <= len(set(gpus) - taken):
        return None
    first["gpus"] = one.name
    if one.gpus > len(gpus):
        return f"{wanted}; {TOO_MANY} {len(gpus)}"
    return f"{wanted}; {_taken_by([other.name for other in held if other.gpus])}"


def _why_cores(
    one: Waiting, held: Sequence[Holding], cores: float, first: dict[str, str]
) -> str | None:
    if not one.cores:
        return None
    wanted = f"waits for {_count(one.cores, 'core')}"
    if "cores" in first:
        return f"{wanted}, behind job {first['cores']}"
    # A job that wants more cores than the machine has gets all of them, once no other job has any.
    free = cores - sum(other.cores for other in held)
    if min(one.cores, cores) <= free + 1e-9:
        return None
    first["cores"] = one.name
    return f"{wanted}; {_taken_by([other.name for other in held if other.cores])}"


def _taken_by(names: list[str]) -> str:
    if len(names) == 1:
        return f"taken by job {names[0]}"
    return f"taken by jobs {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}" + ("" if number == 1 else "s")
