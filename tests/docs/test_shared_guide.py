"""The guide to the shared tier is true: its commands exist, and its manifests become members."""

import re
import shlex
from pathlib import Path

import click
import pytest

from penstock.cache.members import parse_members
from penstock.cli.app import app
from penstock.member.options import Flash
from penstock.units import GIB
from tests.support.planning import plan

PAGE = (Path(__file__).parent.parent.parent / "docs/guides/shared-cache.md").read_text()
COMMANDS = re.findall(r"^ +(?:ExecStart=)?(penstock .*)$", PAGE, re.M)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_guide_exist_with_their_options(line: str) -> None:
    words = shlex.split(line.partition("  #")[0])[1:]
    context = click.Context(app, **app.context_settings)
    command = app.get_command(context, words[0])
    assert command is not None
    if isinstance(command, click.Group):
        command, words = command.commands[words[1]], words[1:]
    command.make_parser(context).parse_args(words[1:])  # raises NoSuchOption


def test_the_forms_of_members_in_the_guide_are_understood() -> None:
    forms = re.findall(r"^\| `(memcached[^`]*)`", PAGE, re.M)
    assert len(forms) == 3
    assert all(parse_members(form) for form in forms)


def test_the_manifests_of_the_guide_become_members() -> None:
    (manifests,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    members = plan(manifests).members
    assert members is not None
    assert [str(one) for one in members.addresses] == ["10.0.0.5:11211", "10.0.0.6:11211"]
    assert (members.memory_bytes, members.flash) == (8 * GIB, Flash("/nvme", 200 * GIB))
