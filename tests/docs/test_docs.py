"""The documents are true: commands, links and exported names that they show exist."""

import importlib.machinery
import importlib.util
import inspect
import re
import shlex
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click
import pytest

import penstock
from penstock.cli.app import SECTIONS, app

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_every_command_is_in_the_table_of_contents_and_ends_in_an_example() -> None:
    modules = [path.stem for path in (ROOT / "src/penstock/cli").glob("*.py")]
    found = [vars(import_module(f"penstock.cli.{name}")).values() for name in modules]
    commands = [one for values in found for one in values if isinstance(one, click.Command)]
    groups = [one for one in commands if isinstance(one, click.Group) and one is not app]
    for group in groups:
        context = click.Context(group)
        below = [group.get_command(context, name) for name in group.list_commands(context)]
        commands = [one for one in commands if one is not app and one not in below]
    listed = [name for names in SECTIONS.values() for name in names]
    assert {command.name for command in commands} == set(listed)
    assert len(listed) == len(set(listed))
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            commands.extend(command.commands.values())
        else:
            assert re.search(r"Example:\s+penstock ", command.help or ""), command.name


def test_the_reference_matches_the_commands_and_models() -> None:
    path = str(ROOT / "tools" / "write-reference")
    loader = importlib.machinery.SourceFileLoader("write_reference", path)
    spec = importlib.util.spec_from_loader("write_reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    for name, made in (
        ("cli.md", module.reference),
        ("penstock.1", module.man_page),
        ("mount-options.md", module.mount_options),
        ("resources.md", module.resources),
        ("bench-plan.md", module.bench_plan),
        ("runtime-options.md", module.runtime_options),
        ("metrics.md", module.metrics),
    ):
        written = (ROOT / "docs" / "reference" / name).read_text()
        assert written == made(), "run tools/write-reference"


def test_no_text_promises_a_release() -> None:
    sources = [*ROOT.glob("src/penstock/cli/*.py"), *ROOT.glob("src/penstock/api/*.py")]
    texts = {path: path.read_text() for path in (*PAGES, *sources) if path.name != "CHANGELOG.md"}
    promised = re.compile(r"pip install '?penstock\b")
    assert [str(path) for path, text in texts.items() if promised.search(text)] == []
    assert "pip install ." in texts[ROOT / "README.md"]


def test_links_resolve() -> None:
    found = [(page, link) for page in PAGES for link in LINK.findall(page.read_text())]
    inside = [page.parent / link for page, link in found if "://" not in link]
    assert len(inside) > 40
    assert [str(path) for path in inside if not path.exists()] == []


def test_every_dependency_has_a_reason_and_a_pinned_version_without_an_address() -> None:
    lines = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [\n")[1].splitlines()
    listed = list(takewhile(lambda line: line != "]", lines))
    assert len(listed) > 5
    assert [line for line in listed if "#" not in line] == []
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_the_library_page_names_every_export_with_its_arguments() -> None:
    page = (ROOT / "docs" / "reference" / "library.md").read_text()
    for name in penstock.__all__:
        if name == "__version__":
            continue
        exported = getattr(penstock, name)
        if isinstance(exported, type):
            assert f"**`{name}`**" in page, name
            public = [one for one in vars(exported) if not one.startswith("_")]
            section = page[page.index(f"**`{name}`**") :].split("\n\n")[0]
            assert all(f"`{one}" in section for one in public), (name, public)
            continue
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}(")]
        arguments = inspect.signature(exported).parameters
        missing = [one for one in arguments if one not in row and one not in ("progress", "name")]
        assert not missing, (name, missing)


def test_every_example_has_a_page_and_a_test_that_runs_it() -> None:
    index = (ROOT / "examples/README.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests/examples").glob("test_*.py"))
    for folder in EXAMPLES:
        assert f"({folder.name})" in index
        page = (folder / "README.md").read_text()
        assert len(page.splitlines()) <= 50, "more than a screen"
        for script in folder.glob("*.py"):
            assert script.name in page, f"{folder.name} says nothing of {script.name}"
            run = f'"{folder.name}/{script.name}"' in tests
            assert run or "__main__" not in script.read_text(), f"no test runs {script}"


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_the_commands_on_an_example_page_exist_with_their_options(folder: Path) -> None:
    lines = re.findall(
        r"^    (penstock|python|kubectl) (.+)$", (folder / "README.md").read_text(), re.M
    )
    assert lines
    for program, rest in lines:
        words = shlex.split(rest)
        if program == "penstock":
            # Click keeps the help option that the first context gives a command.
            context = click.Context(app, **app.context_settings)
            command = app.get_command(context, words[0])
            assert command is not None, rest
            command.make_parser(context).parse_args(words[1:])  # raises NoSuchOption
            words = words[words.index("--") + 1 :] if "--" in words else []
        for number, word in enumerate(words):
            if word.endswith(".py"):
                text = (folder / word).read_text()
                options = [option for option in words[number:] if option.startswith("--")]
                assert [option for option in options if f'"{option}"' not in text] == []
