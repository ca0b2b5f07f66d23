"""The examples' pages: what they link to, the commands they show, and what the scripts import.

Nothing is run here. The scripts run in the other modules, which are slow.
"""

import ast
import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from penstock.cli.app import app
from tests.support.examples import EXAMPLES

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
SCRIPTS = sorted(EXAMPLES.glob("*/*.py"))
NOT_INSTALLED = ("tensorflow", "nvidia", "torchvision")  # optional: the scripts do without


def test_every_example_has_a_number_a_page_and_a_slow_test() -> None:
    assert [folder.name[:2] for folder in FOLDERS] == [
        f"{number:02}" for number in range(1, len(FOLDERS) + 1)
    ]
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    index = (EXAMPLES / "README.md").read_text()
    for folder in FOLDERS:
        assert f"({folder.name})" in index
        assert len((folder / "README.md").read_text().splitlines()) <= 50, "more than a screen"
    for script in SCRIPTS:
        name = f"{script.parent.name}/{script.name}"
        assert script.name in (script.parent / "README.md").read_text(), name
        assert f'EXAMPLES / "{name}"' in tests, f"no test runs {name}"


def test_links_between_the_pages_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in EXAMPLES.glob("**/README.md")
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if "://" not in target
    ]
    assert len(links) >= len(FOLDERS)
    assert [link for link in links if not (link[0].parent / link[1]).exists()] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_commands_of_a_page_exist_with_their_options(folder: Path) -> None:
    lines = re.findall(r"^    (penstock|python) (.+)$", (folder / "README.md").read_text(), re.M)
    assert lines
    for program, rest in lines:
        words = shlex.split(rest)
        if program == "penstock":
            context = click.Context(app)
            command = app.get_command(context, words[0])
            assert command is not None, rest
            command.make_parser(context).parse_args(words[1:])  # raises NoSuchOption
            words = words[words.index("--") + 1 :] if "--" in words else []
        for number, word in enumerate(words):
            if word.endswith(".py"):
                text = (folder / word).read_text()
                options = [option for option in words[number:] if option.startswith("--")]
                assert [option for option in options if f'"{option}"' not in text] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name: [] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {str(node.module): [alias.name for alias in node.names]}
        else:
            continue
        for module, members in names.items():
            top = module.split(".")[0]
            if top == "penstock":
                assert [one for one in members if not hasattr(import_module(module), one)] == []
            elif top not in NOT_INSTALLED:
                assert find_spec(top) or (script.parent / f"{top}.py").exists(), module
