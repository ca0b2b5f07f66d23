"""A resource in the form of `kubectl describe`. Pure."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from penstock.resources.state import Event
from penstock.resources.tables import age, aligned

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[^A-Za-z0-9]+")
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
    body = {"Metadata": rest, **{_title(key): value for key, value in body.items()
                                 if key != "metadata"}}  # fmt: skip
    lines = [*_lines({**head, **body}, 0, keep_titles=True), *_event_lines(events)]
    return "\n".join(lines)


def _lines(value: Mapping[str, Any], depth: int, *, keep_titles: bool = False) -> Iterator[str]:
    """Fields by name, as kubectl sorts them below the first level; values aligned."""
    titles = {key: key if keep_titles else _title(key) for key in value}
    order = list(value) if keep_titles else sorted(value, key=lambda key: titles[key])
    plain = [titles[key] for key in order if not isinstance(value[key], (Mapping, list))]
    width = max(map(len, plain), default=0) + 1
    for key in order:
        yield from _field(titles[key], value[key], depth, width)


def _field(title: str, value: Any, depth: int, width: int) -> Iterator[str]:
    indent = "  " * depth
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
    """`ufsTotal` is `Ufs Total`; what is no field's name (fs.oss.endpoint) stays as it is."""
    if not key.isalnum():
        return key
    return " ".join(word[:1].upper() + word[1:] for word in _WORDS.findall(key))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "<none>" if value is None else str(value)
