"""penstock completion: what a shell completes, down to the names of resources and mounts.

Click's scripts call `penstock` itself for the words. Names come from the state on this machine; a
command that is completed starts nothing and reports nothing.
"""

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class
from click.types import StringParamType

from penstock.errors import PenstockError

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PENSTOCK_COMPLETE"
_HEADS = {
    "bash": "# In ~/.bashrc:  source <(penstock completion bash)",
    "zsh": "# In ~/.zshrc, after compinit:  source <(penstock completion zsh)",
    "fish": "# In ~/.config/fish/config.fish:  penstock completion fish | source",
}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Commands, options, kinds, names of resources, namespaces and mount points are completed.

    \b
    Example:
      penstock completion fish | source
      source <(penstock completion bash)
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    click.echo(_HEADS[shell])
    click.echo(kind(root.command, {}, "penstock", _VARIABLE).source())


def is_completing() -> bool:
    """Whether a shell asks for words, so that nothing else may be printed."""
    return _VARIABLE in os.environ


# -- the words -----------------------------------------------------------------------------------

Words = Callable[[click.Context], Iterable[str]]


def with_words(command: click.Command, path: str) -> click.Command:
    """Let the arguments and options of a command, and of those below it, complete names."""
    for one in command.params:
        if (words := _words_of(path, one)) is not None:
            one.type = _Words(words)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            with_words(child, f"{path} {name}")
    return command


class _Words(StringParamType):
    def __init__(self, words: Words) -> None:
        self._words = words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = sorted(set(self._words(ctx)))
        except PenstockError:
            return []
        return [CompletionItem(word) for word in found if word.startswith(incomplete)]


def _words_of(path: str, parameter: click.Parameter) -> Words | None:
    name = parameter.name
    if isinstance(parameter, click.Option):
        if "--namespace" in parameter.opts:
            return _namespaces
        if "--port" in parameter.opts and path in ("shared status", "shared stop"):
            return _member_ports
        return _mounted_data if path.startswith("submit ") and name == "data" else None
    if name == "kind" or (path == "explain" and name == "path"):
        return _kinds
    if name == "mountpoint" and path != "mount":
        return _mountpoints
    if path in ("load", "up"):
        return lambda ctx: _names("Dataset", ctx)
    if path == "logs":
        return _printing
    if path in ("attach", "top job"):
        return lambda ctx: _names("TrainingJob", ctx)
    if path in ("get", "describe", "delete"):
        return lambda ctx: _names(ctx.params.get("kind") or "", ctx)
    if path == "doctor":
        return _examined
    return None


def _kinds(_: click.Context) -> Iterable[str]:
    from penstock.api.manifests import kind_names

    return kind_names()


def _names(kind: str, ctx: click.Context) -> Iterable[str]:
    from penstock.api.resources import get_all

    place = None if ctx.params.get("all_namespaces") else ctx.params.get("namespace") or "default"
    return [one.name for one in get_all(kind, namespace=place)]


def _namespaces(_: click.Context) -> Iterable[str]:
    from penstock.api.resources import get_all

    return [one.namespace for one in get_all()]


def _mounted_data(ctx: click.Context) -> Iterable[str]:
    return [f"{name}:/data" for name in _names("Dataset", ctx)]


def _mountpoints(_: click.Context) -> Iterable[str]:
    from penstock.api.mounts import mountpoints

    return mountpoints()


def _member_ports(_: click.Context) -> Iterable[str]:
    from penstock.api.shared import ports

    return map(str, ports())


def _printing(ctx: click.Context) -> Iterable[str]:
    """What has a log. Mounts are in no namespace."""
    from penstock.api.resources import get_all

    yield from _names("TrainingJob", ctx)
    namespace = ctx.params.get("namespace")
    for one in get_all("operations", namespace=namespace or "default"):
        yield f"{one.kind.lower()}/{one.name}"
    if namespace is None:
        yield from _mountpoints(ctx)


def _examined(ctx: click.Context) -> Iterable[str]:
    yield from _names("Dataset", ctx)
    yield from (f"job/{name}" for name in _names("TrainingJob", ctx))
