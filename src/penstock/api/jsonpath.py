"""The templates of `kubectl get -o jsonpath=…`, and its columns of one's own. Pure.

Understood: `{.a.b}`, `['key']`, `[0]`, `[1:3]`, `[*]`, `..name`, `[?(@.type=="Ready")]`,
`{range .items[*]}…{end}`, and quoted text such as `{"\n"}`. A field that is missing prints nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock.errors import OptionError

_HINT = "write it like '{.status.phase}' or '{range .items[*]}{.metadata.name}{\"\\n\"}{end}'"
_BLOCK = re.compile(r"""\{((?:[^{}"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*)\}""")
_STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+)
      | \.(?P<name>\*|(?:[\w/-]|\\.)+)
      | \[(?P<index>-?[0-9]+)\]
      | \[(?P<from>-?[0-9]*):(?P<to>-?[0-9]*)\]
      | \[(?P<all>\*)\]
      | \[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]
      | \[\?\(\s*@(?P<where>[^=!<>\s]*)\s*
          (?:(?P<sign>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*)?\)\]
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class _Range:
    path: str
    body: "list[str | _Path | _Range]"


@dataclass(frozen=True, slots=True)
class _Path:
    text: str


_Piece = str | _Path | _Range


def render(template: str, value: Any) -> str:
    """Return the template filled in from `value`. Raises OptionError."""
    if "{" not in template:  # kubectl accepts a bare path too
        template = "{" + template + "}"
    pieces, rest = _parse(_tokens(template), depth=0)
    assert not rest
    return "".join(_rendered(pieces, value))


def column(path: str) -> Callable[[Any], str]:
    """Return what a column of `custom-columns` shows of an object: `<none>` where it has none."""
    path = path.strip("{}")
    _steps(path)  # a mistake is reported before anything is printed

    def shown(value: Any) -> str:
        return ",".join(map(_text, _find(path, value))) or "<none>"

    return shown


def _tokens(template: str) -> list[_Path | str]:
    """Split into plain text and the contents of braces."""
    found: list[_Path | str] = []
    end = 0
    for match in _BLOCK.finditer(template):
        found += [template[end : match.start()], _Path(match[1].strip())]
        end = match.end()
    found.append(template[end:])
    if any(isinstance(one, str) and set("{}") & set(one) for one in found):
        raise OptionError(f"-o jsonpath: {template!r} has a brace without its other", hint=_HINT)
    return [one for one in found if one != ""]


def _parse(tokens: list[_Path | str], depth: int) -> tuple[list[_Piece], list[_Path | str]]:
    pieces: list[_Piece] = []
    while tokens:
        one, tokens = tokens[0], tokens[1:]
        if isinstance(one, str):
            pieces.append(one)
        elif one.text == "end":
            if not depth:
                raise OptionError("-o jsonpath: {end} without {range}", hint=_HINT)
            return pieces, tokens
        elif one.text.startswith("range "):
            body, tokens = _parse(tokens, depth + 1)
            pieces.append(_Range(one.text.removeprefix("range ").strip(), body))
        elif one.text[:1] in ("'", '"'):
            pieces.append(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), one.text[1:-1]))
        else:
            pieces.append(one)
    if depth:
        raise OptionError("-o jsonpath: {range} without {end}", hint=_HINT)
    return pieces, tokens


def _rendered(pieces: Sequence[_Piece], value: Any) -> Iterator[str]:
    for one in pieces:
        if isinstance(one, str):
            yield one
        elif isinstance(one, _Path):
            yield " ".join(map(_text, _find(one.text, value)))
        else:
            for item in _find(one.path, value):
                yield from _rendered(one.body, item)


def _find(path: str, value: Any) -> list[Any]:
    found = [value]
    for step in _steps(path):
        found = [after for before in found for after in _after(step, before)]
    return found


def _steps(path: str) -> list[re.Match[str]]:
    rest = path.removeprefix("$").removeprefix("@")
    if rest[:1] not in ("", ".", "["):
        rest = f".{rest}"
    steps: list[re.Match[str]] = []
    while rest not in ("", "."):
        match = _STEP.match(rest)
        if match is None:
            raise OptionError(f"-o jsonpath: {path!r} cannot be read from {rest!r}", hint=_HINT)
        steps.append(match)
        rest = rest[match.end() :]
    return steps


def _after(step: re.Match[str], value: Any) -> Iterator[Any]:
    if step["deep"] is not None:
        yield from _everywhere(step["deep"], value)
    elif (name := step["key"] if step["quote"] else step["name"]) not in (None, "*"):
        name = re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, Mapping) and name in value:
            yield cast("Mapping[str, Any]", value)[name]
    elif name == "*" or step["all"]:
        yield from _items(value)
    elif not isinstance(value, list):
        return
    elif step["index"] is not None:
        index, items = int(step["index"]), cast("list[Any]", value)
        if -len(items) <= index < len(items):
            yield items[index]
    elif step["from"] is not None:
        ends = (int(end) if end else None for end in (step["from"], step["to"]))
        yield from cast("list[Any]", value)[slice(*ends)]
    else:
        yield from (one for one in cast("list[Any]", value) if _holds(step, one))


def _holds(step: re.Match[str], value: Any) -> bool:
    found = [_text(one) for one in _find(step["where"], value)]
    if step["sign"] is None:
        return bool(found)
    is_equal = step["value"].strip("\"'") in found
    return is_equal if step["sign"] == "==" else not is_equal


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[str, Any]", value).values()
    elif isinstance(value, list):
        yield from cast("list[Any]", value)


def _everywhere(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping) and name in value:
        yield cast("Mapping[str, Any]", value)[name]
    for one in _items(value):
        yield from _everywhere(name, one)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
