"""What the commands for training jobs have in common: which job is meant."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import NoSuchResource
from penstock.specs.keys import ResourceKey

if TYPE_CHECKING:
    from penstock.resources.state import State, Stored

KIND = "TrainingJob"
Command = Callable[..., Any]


def type_option(command: Command) -> Command:
    """arena's -T: there a job is known by its trainer and its name, here by its name."""
    return click.option("-T", "--type", hidden=True, expose_value=False)(command)


def find_job(state: "State", name: str, namespace: str | None) -> "Stored":
    place = namespace or "default"
    found = state.find(ResourceKey(KIND, place, name))
    if found is not None:
        return found
    known = [one.key for one in state.all([KIND])]
    here = [key.name for key in known if key.namespace == place]
    hint = "`penstock list -A` shows what there is"
    if elsewhere := [key.namespace for key in known if key.name == name]:
        hint = f"there is one in the namespace {elsewhere[0]}: -n {elsewhere[0]}"
    elif near := get_close_matches(name, here, n=1):
        hint = f"did you mean {near[0]}?"
    raise NoSuchResource(f"there is no job {name} in the namespace {place}", hint=hint)


def named(key: ResourceKey) -> str:
    """How a command line names it: with -n where it must."""
    return key.name if key.namespace == "default" else f"{key.name} -n {key.namespace}"
