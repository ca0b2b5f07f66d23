"""The configuration file: defaults of options, below the command line and the environment.

    namespace = "vision"            every command that has --namespace

    [mount]
    cache-dir = "/nvme/penstock"    penstock mount --cache-dir

    [submit.pytorch]
    gpus = 1                        penstock submit pytorch --gpus

    [priority-classes]
    critical = 1000                 penstock submit … --priority critical

A variable such as PENSTOCK_MOUNT_CACHE_DIR comes before the file, and PENSTOCK_NAMESPACE before its
`namespace`. A name that no command or option has is an error. What concerns other commands is not
looked at, so that one command imports the modules of no other.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import click

from penstock.errors import OptionError, did_you_mean

Json = dict[str, Any]

_CLASSES = "priority-classes"
_NAMESPACE = "namespace"


def configuration_path() -> Path:
    """$PENSTOCK_CONFIG, or penstock/config.toml in the user's configuration folder."""
    if set_by_user := os.environ.get("PENSTOCK_CONFIG"):
        return Path(set_by_user)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "penstock" / "config.toml"


def priority_classes() -> Mapping[str, int]:
    """The names that --priority takes, each with its number."""
    classes = _read().get(_CLASSES, {})
    for name, value in classes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise _mistake(f"{_CLASSES}.{name} is not a whole number", f"{name} = 1000")
    return classes


def defaults(command: click.Command, name: str, commands: Iterable[str]) -> Json:
    """Return click's `default_map` for the command of this name and those below it.

    `commands`: the names of all commands, which are those of the tables."""
    content = _read()
    everywhere = os.environ.get("PENSTOCK_NAMESPACE")
    if not content and everywhere is None:
        return {}
    for key, value in content.items():
        if key not in (_NAMESPACE, _CLASSES, *commands):
            raise _unknown([key], "penstock", [_NAMESPACE, _CLASSES, *commands])
        if isinstance(value, dict) == (key == _NAMESPACE):
            what = "a table" if key == _NAMESPACE else "not a table"
            raise _mistake(f"{key} is {what}", f'{key} = "…"' if key == _NAMESPACE else f"[{key}]")
    inherited = {key: value for key, value in content.items() if key == _NAMESPACE}
    return {name: _defaults(command, content.get(name, {}), [name], inherited)}


def _defaults(command: click.Command, table: Json, place: list[str], inherited: Json) -> Json:
    options = {
        word.removeprefix("--"): one
        for one in command.params
        if isinstance(one, click.Option)
        for word in one.opts
        if word.startswith("--")
    }
    below: Mapping[str, click.Command] = {}
    if isinstance(command, click.Group):
        below = command.commands
    tables: dict[str, Json] = {key: value for key, value in table.items() if _is_table(value)}
    values = {key: value for key, value in table.items() if key not in tables}
    for key in table:
        if key not in (below if key in tables or below else options):
            raise _unknown([*place, key], " ".join(["penstock", *place]), below or options)
    if everywhere := os.environ.get("PENSTOCK_NAMESPACE"):
        values[_NAMESPACE] = everywhere
    found: Json = {
        str(options[key].name): _value(options[key], value, [*place, key])
        for key, value in {**inherited, **values}.items()
        if key in options
    }
    for key, child in below.items():
        found[key] = _defaults(child, tables.get(key, {}), [*place, key], inherited)
    return found


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _value(option: click.Option, value: Any, place: list[str]) -> Any:
    """Check the kind of a value; click converts and checks the rest, as on the command line."""
    if option.is_flag != isinstance(value, bool):
        takes, example = ("true or false", "true") if option.is_flag else ("a value", '"…"')
        raise _mistake(f"{'.'.join(place)} takes {takes}", f"{place[-1]} = {example}")
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    if option.multiple:
        return [str(one) for one in values]
    if isinstance(value, list):
        raise _mistake(f"{'.'.join(place)} takes one value", f'{place[-1]} = "…"')
    return value if isinstance(value, bool) else str(value)


def _unknown(place: list[str], command: str, known: Iterable[str]) -> OptionError:
    hint = did_you_mean(place[-1], known, f"`{command} --help` lists what there is")
    return OptionError(
        f"{configuration_path()}: `{command}` has no {place[-1]}, as in {'.'.join(place)}",
        hint=hint,
    )


def _mistake(what: str, example: str) -> OptionError:
    return OptionError(f"{configuration_path()}: {what}", hint=f"write it like {example}")


def _read() -> Json:
    path = configuration_path()
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}", hint="it is TOML, such as [mount]") from None
    except OSError as error:
        hint = "PENSTOCK_CONFIG names another file"
        raise OptionError(f"{path} cannot be read: {error.strerror}", hint=hint) from None
