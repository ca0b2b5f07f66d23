"""Resources as tables and as text, in the columns of kubectl and Fluid. Pure."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any, NamedTuple, cast

from penstock.reconcile.snapshot import Event

Json = Mapping[str, Any]


class Column(NamedTuple):
    title: str
    value: Callable[[Json], str]
    wide: bool = False


def table(objects: Sequence[Json], kind: str, *, wide: bool, namespaces: bool) -> list[list[str]]:
    """A row of titles, and one for each object."""
    columns = [column for column in columns_of(kind) if wide or not column.wide]
    if namespaces:
        columns.insert(0, Column("NAMESPACE", _at("metadata.namespace")))
    return [
        [column.title for column in columns],
        *([column.value(one) for column in columns] for one in objects),
    ]


def columns_of(kind: str) -> list[Column]:
    if kind == "Event":
        return _EVENT
    return [Column("NAME", _at("metadata.name")), *_COLUMNS.get(kind, _RUNTIME)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align like kubectl: each column as wide as its widest cell, three blanks between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def age(seconds: float) -> str:
    """Shorten a duration like kubectl: `5s`, `4m45s`, `52m`, `7h12m`, `3d4h`, `52d`."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


def _at(path: str, missing: str = "") -> Callable[[Json], str]:
    words = path.split(".")

    def value(one: Json) -> str:
        found: Any = one
        for word in words:
            found = cast("Json", found).get(word) if isinstance(found, Mapping) else None
        return missing if found is None else str(found)

    return value


def _age(one: Json) -> str:
    created = datetime.fromisoformat(one["metadata"]["creationTimestamp"]).timestamp()
    return age(time.time() - created)


def _progress(one: Json) -> str:
    status = one.get("status", {})
    progress: dict[str, int] = status.get("progress") or {}
    done, total = progress.get("bytes", 0), progress.get("ofBytes")
    if status.get("phase") != "Executing" or not total:
        return ""
    return f"{min(99, 100 * done // total)}%"


def _trainer(one: Json) -> str:
    """`MPIJOB`, as arena prints it."""
    return f"{one['spec']['trainer']}job".upper()


def _job_duration(one: Json) -> str:
    """From the start of the first attempt until the end, or until now."""
    status = one.get("status", {})
    if (begun := status.get("startTime")) is None:
        return "0s"
    ended = status.get("completionTime")
    until_s = time.time() if ended is None else datetime.fromisoformat(ended).timestamp()
    return age(until_s - datetime.fromisoformat(begun).timestamp())


def _keys(one: Json) -> str:
    named: list[dict[str, str]] = [one.get("data") or {}, one.get("stringData") or {}]
    return str(len({key for some in named for key in some}))


def _last_seen(one: Json) -> str:
    return age(time.time() - datetime.fromisoformat(one["lastTimestamp"]).timestamp())


def _object(one: Json) -> str:
    return f"{one['involvedObject']['kind'].lower()}/{one['involvedObject']['name']}"


_AGE = Column("AGE", _age)
_EVENT = [
    Column("LAST SEEN", _last_seen),
    Column("TYPE", _at("type")),
    Column("REASON", _at("reason")),
    Column("OBJECT", _object),
    Column("MESSAGE", _at("message")),
    Column("COUNT", _at("count"), wide=True),
]
_DATASET = [
    Column("UFS TOTAL SIZE", _at("status.ufsTotal")),
    Column("CACHED", _at("status.cacheStates.cached")),
    Column("CACHE CAPACITY", _at("status.cacheStates.cacheCapacity")),
    Column("CACHED PERCENTAGE", _at("status.cacheStates.cachedPercentage")),
    Column("PHASE", _at("status.phase")),
    Column("HCFS URL", _at("status.hcfs.endpoint", "<none>"), wide=True),
    Column("TOTAL FILES", _at("status.fileNum"), wide=True),
    Column("CACHE HIT RATIO", _at("status.cacheStates.cacheHitRatio"), wide=True),
    Column("MOUNT PATH", _at("status.mountPath"), wide=True),
    _AGE,
]
_RUNTIME = [
    Column("READY MASTERS", _at("status.masterNumberReady"), wide=True),
    Column("DESIRED MASTERS", _at("status.desiredMasterNumberScheduled"), wide=True),
    Column("MASTER PHASE", _at("status.masterPhase")),
    Column("READY WORKERS", _at("status.workerNumberReady"), wide=True),
    Column("DESIRED WORKERS", _at("status.desiredWorkerNumberScheduled"), wide=True),
    Column("WORKER PHASE", _at("status.workerPhase")),
    Column("READY FUSES", _at("status.fuseNumberReady"), wide=True),
    Column("DESIRED FUSES", _at("status.desiredFuseNumberScheduled"), wide=True),
    Column("FUSE PHASE", _at("status.fusePhase")),
    Column("API GATEWAY", _at("status.apiGateway.endpoint", "<none>"), wide=True),
    _AGE,
]
_OPERATION = [
    Column("PHASE", _at("status.phase")),
    Column("PROGRESS", _progress, wide=True),
    _AGE,
    Column("DURATION", _at("status.duration")),
]
_COLUMNS: Mapping[str, list[Column]] = {
    "Dataset": _DATASET,
    "JuiceFSRuntime": [column for column in _RUNTIME if "MASTER" not in column.title
                       and column.title != "API GATEWAY"],
    "DataLoad": [Column("DATASET", _at("spec.dataset.name")), *_OPERATION],
    "DataProcess": [Column("DATASET", _at("spec.dataset.name")), *_OPERATION],
    "DataMigrate": _OPERATION,
    "DataBackup": [
        Column("DATASET", _at("spec.dataset")),
        Column("PHASE", _at("status.phase")),
        Column("PATH", _at("status.infos.BackupLocationPath")),
        Column("NODENAME", _at("status.infos.BackupLocationNodeName")),
        Column("DURATION", _at("status.duration")),
        _AGE,
    ],
    "TrainingJob": [
        Column("STATUS", _at("status.phase", "PENDING")),
        Column("TRAINER", _trainer),
        Column("DURATION", _job_duration),
        Column("GPU(Requested)", _at("status.gpusRequested", "0")),
        Column("GPU(Allocated)", _at("status.gpusAllocated", "0")),
        Column("NODE", _at("status.node", "N/A")),
        Column("MESSAGE", _at("status.message"), wide=True),
        Column("AGE", _age, wide=True),
    ],
    "Secret": [Column("TYPE", _at("type", "Opaque")), Column("DATA", _keys), _AGE],
    "ThinRuntimeProfile": [Column("FILE SYSTEM", _at("spec.fileSystemType")), _AGE],
}  # fmt: skip


# -- the form of `kubectl describe` -----------------------------------------------------------

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[^A-Za-z0-9]+")
_LONGEST = 100  # characters of a value in one line
_SHOWN_FIRST = ("name", "namespace", "labels", "annotations")


def describe(shown: Mapping[str, Any], events: Sequence[Event]) -> str:
    metadata = shown["metadata"]
    rest = {key: value for key, value in metadata.items() if key not in _SHOWN_FIRST}
    head = {
        "Name": metadata["name"],
        "Namespace": metadata["namespace"],
        "Labels": _pairs(metadata.get("labels")),
        "Annotations": _pairs(metadata.get("annotations")),
        "API Version": shown["apiVersion"],
        "Kind": shown["kind"],
    }
    body = {key: value for key, value in shown.items() if key not in ("apiVersion", "kind")}
    body = {
        "Metadata": rest,
        **{_title(key): value for key, value in body.items() if key != "metadata"},
    }
    lines = [*_lines({**head, **body}, 0, keep_titles=True), *_event_lines(events)]
    return "\n".join(lines)


def _lines(value: Mapping[str, Any], depth: int, *, keep_titles: bool = False) -> Iterator[str]:
    """Yield fields, below the first level sorted by name like kubectl; values aligned."""
    titles = {key: key if keep_titles else _title(key) for key in value}
    order = list(value) if keep_titles else sorted(value, key=lambda key: titles[key])
    plain = [titles[key] for key in order if not isinstance(value[key], (Mapping, list))]
    width = max(map(len, plain), default=0) + 1
    for key in order:
        yield from _field(titles[key], value[key], depth, width)


def _field(title: str, value: Any, depth: int, width: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, str) and len(value) > _LONGEST:  # conditions may name many fields
        value = "\n".join(wrap(value, _LONGEST, break_long_words=False, break_on_hyphens=False))
    if isinstance(value, Mapping):
        yield f"{indent}{title}:"
        yield from _lines(cast("Mapping[str, Any]", value), depth + 1)
    elif isinstance(value, list):
        yield f"{indent}{title}:"
        for one in cast("list[Any]", value):
            if isinstance(one, Mapping):
                yield from _lines(cast("Mapping[str, Any]", one), depth + 1)
            else:
                yield f"{indent}  {_text(one)}"
    elif isinstance(value, str) and "\n" in value:
        yield f"{indent}{title}:".ljust(len(indent) + width) + f"  {value.splitlines()[0]}"
        for line in value.splitlines()[1:]:
            yield " " * (len(indent) + width) + f"  {line}"
    else:
        yield f"{indent}{title}:".ljust(len(indent) + width) + f"  {_text(value)}"


def _event_lines(events: Sequence[Event]) -> list[str]:
    if not events:
        return ["Events:  <none>"]
    now_s = time.time()
    rows = [["  Type", "Reason", "Age", "Message"], ["  ----", "------", "---", "-------"]]
    for event in events:
        when = age(now_s - event.last_s)
        if event.count > 1:
            when = f"{when} (x{event.count} over {age(now_s - event.first_s)})"
        rows.append([f"  {event.kind}", event.reason, when, event.message])
    return ["Events:", *aligned(rows)]


def _pairs(values: Mapping[str, str] | None) -> str:
    if not values:
        return "<none>"
    return "\n".join(f"{key}={value}" for key, value in sorted(values.items()))


def _title(key: str) -> str:
    """`ufsTotal` becomes `Ufs Total`; a name with other characters (fs.oss.endpoint) stays."""
    if not key.isalnum():
        return key
    return " ".join(word[:1].upper() + word[1:] for word in _WORDS.findall(key))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "<none>" if value is None else str(value)
