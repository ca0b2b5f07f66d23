"""Parse YAML to plain values with their lines. Pure.

Follows Kubernetes: times stay text, keys are text, duplicate keys are errors, and documents that
expand without bounds are refused. libyaml only composes nodes. Values are built here, where lines
and duplicate keys are still visible.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, Event
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from penstock.errors import Problem

# Far more than any set of manifests has, and little enough to be parsed in a second.
_MOST_NODES = 200_000
_MOST_CHARACTERS = 16 << 20
_DEEPEST = 60
_TOO_DEEP = ("is nested too deeply", "check its brackets, anchors and aliases")

_NULL, _BOOL, _INT, _FLOAT, _STR, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "merge")
)
_MAP, _SEQ = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
_TRUE = ("true", "yes", "on", "y")


class _Loader(yaml.CBaseLoader):
    """Composes nodes and resolves the types of Kubernetes' YAML: no times, and no numbers to the
    base of 60 (an address such as 10:20 stays text)."""


def _add_type(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))


_add_type(
    _BOOL,
    "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    "yYnNtTfFoO",
)
_add_type(
    _INT, r"[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0o[0-7]+|0x[0-9a-fA-F_]+|0b[01_]+)", "-+0123456789"
)
_add_type(
    _FLOAT,
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?",
    "-+.0123456789",
)
_add_type(_NULL, "~|null|Null|NULL|", "~nN")
_Loader.add_implicit_resolver(_NULL, re.compile("^$"), [""])
_add_type(_MERGE, "<<", "<")


@dataclass(frozen=True)
class Lines:
    """The line of each value by its path, from 1."""

    by_path: Mapping[str, int]
    prefix: str = ""
    first: int = 1

    def of(self, path: str) -> int:
        """Return the line of a value, or of the nearest existing value above it."""
        whole = ".".join(part for part in (self.prefix, path) if part)
        while whole:
            if whole in self.by_path:
                return self.by_path[whole]
            whole = whole.rpartition(".")[0]
        return self.first

    def below(self, path: str) -> "Lines":
        whole = ".".join(part for part in (self.prefix, path) if part)
        return Lines(self.by_path, whole, self.of(path))


@dataclass(frozen=True)
class Tree:
    value: Any
    lines: Lines
    # Numbers and booleans that print differently than they were written (010 is 8, yes is true), by
    # path. Where text is expected it is not clear which of the two is meant.
    ambiguous: Mapping[str, str]


def read_trees(text: str, file: str, problems: list[Problem]) -> Iterator[Tree]:
    """Yield a tree for each document without mistakes; add the others' mistakes to `problems`."""
    loader = None
    try:
        text.encode()
        _check_depth(text)
        loader = _Loader(text)
        budget = _Budget()
        while loader.check_node():
            builder = _Builder(file, budget)
            node = cast("Node", loader.get_node())
            value = builder.build(node, "", 0)
            problems.extend(builder.problems)
            if not builder.problems:
                first = node.start_mark.line + 1
                yield Tree(value, Lines(builder.lines, first=first), builder.ambiguous)
    except _LimitExceeded as error:
        problems.append(Problem(f"{file}:{error.line}", error.what, error.hint))
    except yaml.YAMLError as error:
        problems.append(_syntax(error, file, text))
    except UnicodeEncodeError:
        problems.append(Problem(file, "is not text", "a manifest is YAML, in UTF-8"))
    finally:
        if loader is not None:
            loader.dispose()


class _LimitExceeded(Exception):
    def __init__(self, line: int, what: str, hint: str) -> None:
        super().__init__(what)
        self.line, self.what, self.hint = line, what, hint


def _check_depth(text: str) -> None:
    """Refuse deep nesting: libyaml composes by unbounded recursion in C, and 100,000 brackets kill
    the process (PyYAML 6.0.3)."""
    loader = _Loader(text)
    depth = 0
    try:
        while loader.check_event():
            event = cast("Event", loader.get_event())
            if isinstance(event, CollectionStartEvent):
                depth += 1
                if depth > _DEEPEST:
                    raise _LimitExceeded(event.start_mark.line + 1, *_TOO_DEEP)
            elif isinstance(event, CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        pass  # composing meets the same error, and reports it
    finally:
        loader.dispose()


@dataclass
class _Budget:
    """How much may still be built. Anchors can turn a few lines into billions of values."""

    nodes: int = _MOST_NODES
    characters: int = _MOST_CHARACTERS

    def take(self, node: Node) -> None:
        self.nodes -= 1
        if isinstance(node, ScalarNode):
            self.characters -= len(node.value)
        if self.nodes < 0 or self.characters < 0:
            raise _LimitExceeded(
                _line(node), "is too large", "check its anchors and aliases, or split it"
            )


@dataclass
class _Builder:
    file: str
    budget: _Budget
    lines: dict[str, int] = field(default_factory=dict[str, int])
    ambiguous: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def build(self, node: Node, path: str, depth: int) -> Any:
        self.budget.take(node)
        if depth > _DEEPEST:
            raise _LimitExceeded(_line(node), *_TOO_DEEP)
        if isinstance(node, MappingNode) and node.tag == _MAP:
            return self._mapping(node, path, depth)
        if isinstance(node, SequenceNode) and node.tag == _SEQ:
            return self._sequence(node, path, depth)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        return self._wrong(node, *_unknown_tag(node))

    def _mapping(self, node: MappingNode, path: str, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        seen: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in cast("list[tuple[Node, Node]]", node.value):
            if key_node.tag == _MERGE:
                merged |= self._merged(value_node, path, depth)
                continue
            if not isinstance(key_node, ScalarNode):
                self._wrong(key_node, "a key must be text", None)
                continue
            key = str(key_node.value)
            if key in seen:
                self._wrong(
                    key_node,
                    f"{key[:60]!r} is twice in one map; first in line {seen[key]}",
                    "keep one of them" if depth else "keep one of them, or put --- between two",
                )
                continue
            seen[key] = _line(key_node)
            self.budget.take(key_node)
            below = f"{path}.{key}" if path else key
            self.lines[below] = _line(key_node)
            entries[key] = self.build(value_node, below, depth + 1)
        return merged | entries

    def _merged(self, node: Node, path: str, depth: int) -> dict[str, Any]:
        """Return the value of `<<`: one map, or several, the first of which wins."""
        if isinstance(node, SequenceNode):
            found: dict[str, Any] = {}
            for one in cast("list[Node]", node.value):
                self.budget.take(one)
                found = self._merged(one, path, depth + 1) | found
            return found
        value = self.build(node, path, depth + 1)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        self._wrong(node, "`<<` needs a map", None)
        return {}

    def _sequence(self, node: SequenceNode, path: str, depth: int) -> list[Any]:
        items: list[Any] = []
        for index, item in enumerate(cast("list[Node]", node.value)):
            below = f"{path}.{index}" if path else str(index)
            self.lines[below] = _line(item)
            items.append(self.build(item, below, depth + 1))
        return items

    def _scalar(self, node: ScalarNode, path: str) -> Any:
        text = str(node.value)
        if node.tag == _STR:
            return text
        if node.tag == _NULL:
            return None
        value: bool | int | float
        try:
            if node.tag == _BOOL:
                value = text.lower() in _TRUE
                printed = "true" if value else "false"
                if printed != text.lower():
                    self.ambiguous[path] = text
                return value
            if node.tag == _INT:
                value = _int(text)
            elif node.tag == _FLOAT:
                value = float(text.replace("_", ""))
            else:
                return self._wrong(node, *_unknown_tag(node))
        except ValueError:
            return self._wrong(node, "a number that cannot be read", "put it in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(node, "a number that is too large", "put it in quotes")
        if str(value) != text:
            self.ambiguous[path] = text
        return value

    def _wrong(self, node: Node, what: str, hint: str | None) -> None:
        self.problems.append(Problem(f"{self.file}:{_line(node)}", what, hint))


def _unknown_tag(node: Node) -> tuple[str, str]:
    return f"tag {str(node.tag)[:60]!r} is not supported", "leave it out"


def _int(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith("0") else 10)


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def _syntax(error: yaml.YAMLError, file: str, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    number: int | None = mark.line if mark is not None else None
    where = file if number is None else f"{file}:{number + 1}"
    what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable")
    if number is not None:
        for line in text.splitlines()[number : number + 1]:
            if "\t" in line[: len(line) - len(line.lstrip())]:
                return Problem(where, "a tab where YAML needs spaces", "indent with spaces")
    if "control characters" in what or "UTF-8" in what:
        return Problem(where, "is not text", "a manifest is YAML, in UTF-8")
    return Problem(where, f"invalid YAML: {what}", _syntax_hint(what))


def _syntax_hint(what: str) -> str:
    if "mapping values are not allowed" in what:
        return "put a value that holds `: ` in quotes, or indent the line less"
    if "did not find expected key" in what:
        return "begin all lines of one map in the same column"
    if "cannot start any token" in what:
        return "put the value in quotes"
    return "check quotes, brackets and indentation near this line"
