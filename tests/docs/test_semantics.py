"""docs/semantics.md, docs/threat-model.md and the tests that they name, and how test modules share
code. Nothing is run here: the files are parsed."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef

# A bullet ends where the next one, a paragraph or a heading begins.
BULLETS = [
    bullet.split("\n\n")[0]
    for page in ("semantics.md", "threat-model.md")
    for bullet in re.split(r"^- ", (ROOT / "docs" / page).read_text(), flags=re.M)[1:]
]


@pytest.mark.parametrize("bullet", BULLETS, ids=lambda bullet: bullet[:50])
def test_every_sentence_names_tests_that_run_and_can_fail(bullet: str) -> None:
    named = re.findall(r"`(tests/[^`]+)`", bullet)
    assert named, "no test is named"
    for one in named:
        file, _, name = one.partition("::")
        assert name.startswith("test_"), f"{one}: name one test, as in file.py::test_name"
        function = functions(ROOT / file).get(name)
        assert function is not None, f"{one} does not exist"
        marks = [ast.unparse(mark) for mark in function.decorator_list]
        assert not re.search(r"mark\.(skip|xfail)\b", " ".join(marks)), f"{one} never runs"
        assert can_fail(function, ROOT / file), f"{one} asserts nothing"


def can_fail(function: Function, file: Path, depth: int = 2) -> bool:
    """Whether it asserts, or calls a function of its file or of tests/support that does."""
    if asserts(function):
        return True
    helpers = {name: (one, file) for name, one in functions(file).items()} | imported(file)
    called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return depth > 0 and any(
        can_fail(*helpers[name], depth - 1) for name in called & helpers.keys()
    )


def asserts(function: Function) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node):
            return True
        if isinstance(node, ast.Call) and re.fullmatch(
            r"pytest\.(raises|warns|fail)", ast.unparse(node.func)
        ):
            return True
    return False


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def functions(file: Path) -> dict[str, Function]:
    return {node.name: node for node in ast.walk(parsed(file)) if isinstance(node, Function)}


def imported(file: Path) -> dict[str, tuple[Function, Path]]:
    """The functions of tests/support that a file imports, and where they are."""
    found: dict[str, tuple[Function, Path]] = {}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests.support."):
            place = ROOT / f"{str(node.module).replace('.', '/')}.py"
            there = functions(place)
            found |= {one.name: (there[one.name], place) for one in node.names if one.name in there}
    return found


def test_no_module_imports_a_test_module_or_a_conftest() -> None:
    """What tests share lies in tests/support: pytest imports a test module by its path, and an
    import by name would make a second copy of it."""
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in (ROOT / "tests").rglob("*.py")
        if (wrong := [name for name in imports(parsed(path)) if is_no_support(name)])
    }
    assert found == {}


def is_no_support(name: str) -> bool:
    return re.search(r"^\.|^tests\..*\b(conftest|test_\w+)\b", name) is not None


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{one.name}" for one in node.names)
