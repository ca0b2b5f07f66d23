"""The documents are true: commands, links and exported names that they show exist."""

import importlib.machinery
import importlib.util
import inspect
import re
from pathlib import Path

import click
import pytest

import penstock
from penstock.cli.app import SECTIONS, app

ROOT = Path(__file__).parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_every_command_is_in_the_table_of_contents_and_ends_in_an_example() -> None:
    context = click.Context(app)
    modules = {path.stem for path in (ROOT / "src/penstock/cli").glob("*.py")}
    names = {name for _, names in SECTIONS for name in names}
    assert names <= modules
    found = {name: app.get_command(context, name) for name in names}
    commands = [command for command in found.values() if command is not None]
    assert {command.name for command in commands} == names
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            commands.extend(command.commands.values())
        else:
            assert re.search(r"Example:\s+penstock ", command.help or ""), command.name


def test_the_reference_is_what_the_commands_and_models_say() -> None:
    path = str(ROOT / "tools" / "write-reference")
    loader = importlib.machinery.SourceFileLoader("write_reference", path)
    spec = importlib.util.spec_from_loader("write_reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    for name, made in (
        ("cli.md", module.reference),
        ("resources.md", module.resources),
        ("bench-plan.md", module.bench_plan),
    ):
        written = (ROOT / "docs" / "reference" / name).read_text()
        assert written == made(), "run tools/write-reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_dependency_has_its_reason_beside_it() -> None:
    lines = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]")[0]
    for line in lines.strip().splitlines():
        assert "#" in line, line


def test_the_constraints_hold_no_addresses() -> None:
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_the_library_page_names_all_that_is_exported_with_its_arguments() -> None:
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
        missing = [one for one in arguments if one not in row and one not in ("tell", "name")]
        assert not missing, (name, missing)
