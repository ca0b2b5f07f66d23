"""What the commands for declared resources have in common: options, stdin, a line of progress."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import Line
from penstock.errors import ManifestError
from penstock.specs.kinds import KindInfo, ResourceKey, find_kinds

if TYPE_CHECKING:
    from penstock.reconcile.snapshot import Pair

Command = Callable[..., Any]


def namespace_option(command: Command) -> Command:
    return click.option("-n", "--namespace", metavar="NAME", help="[default: default]")(command)


def kinds_of(word: str, verb: str, namespace: str | None) -> list[KindInfo]:
    """As find_kinds; where someone names a job without its kind, as arena does, that is said."""
    try:
        return find_kinds(word)
    except ManifestError as error:
        from penstock.reconcile.state import State

        if State().find(ResourceKey("TrainingJob", namespace or "default", word)) is None:
            raise
        where = f" -n {namespace}" if namespace else ""
        raise ManifestError(
            str(error), hint=f"there is a job of that name: `penstock {verb} job {word}{where}`"
        ) from None


class Progress(Line):
    """`imagenet: listing, 12,000 files, 1.2 GiB`."""

    def pairs(self, waiting: "list[Pair]") -> None:
        if waiting:
            more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            self.draw(f"{_state_of(waiting[0])}{more}")


def _state_of(pair: "Pair") -> str:
    status = pair.dataset.status if pair.dataset is not None else {}
    if str(status.get("fileNum", "")).endswith("+"):
        files = int(status["fileNum"].rstrip("+"))
        return f"{pair.name}: listing, {files:,} files, {status['ufsTotal'].rstrip('+')}"
    return f"{pair.name}: being mounted"
