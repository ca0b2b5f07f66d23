"""penstock apply, create, load, up and delete: the commands that change what is declared."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from penstock.cli.options import find_kinds, namespace_option
from penstock.cli.output import StatusLine, notify, print_error
from penstock.errors import NoSuchResource, OptionError
from penstock.units import counted, format_size, parse_duration

if TYPE_CHECKING:
    from penstock.api.manifests import Manifests
    from penstock.api.resources import Applied, Pair

_BACKGROUND = "running in the background; check it with `penstock get datasets -w`"


def _with_manifest_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--timeout", metavar="DURATION", help="Wait no longer than this."),
        click.option(
            "--wait/--no-wait",
            default=True,
            show_default=True,
            help="Return when data sets are bound.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Check everything and show what would change."
        ),
        namespace_option,
        click.option(
            "-f",
            "--filename",
            "files",
            multiple=True,
            required=True,
            metavar="FILE|DIR|-",
            help="Manifests: a file, a folder of them, or - for stdin. May be given several times.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@_with_manifest_options
def apply(
    files: tuple[str, ...], namespace: str | None, dry_run: bool, wait: bool, timeout: str | None
) -> None:
    """Create or update resources from manifests.

    Takes Fluid's YAML unchanged: data sets, runtimes, loads, jobs. Checks everything first, and
    applies all of it or nothing. A change of a mounted data set is made in place where possible.

    \b
    Example:
      penstock apply -f dataset.yaml -f runtime.yaml
      penstock get datasets
    """
    apply_manifests(files, namespace, dry_run=dry_run, wait=wait, timeout=timeout)


@click.command()
@_with_manifest_options
def create(
    files: tuple[str, ...], namespace: str | None, dry_run: bool, wait: bool, timeout: str | None
) -> None:
    """Create resources from manifests; none may exist yet.

    \b
    Example:
      penstock create -f dataset.yaml
    """
    apply_manifests(files, namespace, dry_run=dry_run, wait=wait, timeout=timeout, only_new=True)


def apply_manifests(
    manifests: "Manifests",
    namespace: str | None,
    *,
    dry_run: bool = False,
    wait: bool = True,
    timeout: str | None = None,
    only_new: bool = False,
) -> None:
    """Apply, print a line for each resource, and wait until the data sets are bound."""
    from penstock.api import resources

    timeout_s = None if timeout is None else parse_duration(timeout, what="--timeout")
    began_s = time.time()
    applied = resources.apply(
        manifests, namespace=namespace, dry_run=dry_run, only_new=only_new, wait=False
    )
    for one in applied:
        click.echo(_outcome(one) + (" (dry run)" if dry_run else ""))
    if dry_run or not wait:
        return
    sys.stdout.flush()
    try:
        with _BindingProgress() as progress:
            troubles = resources.wait_until_bound(
                applied, timeout_s=timeout_s, progress=progress.update
            )
    except KeyboardInterrupt:
        notify(_BACKGROUND)
        raise click.exceptions.Abort from None
    for remark in resources.remarks(applied, began_s):
        notify(remark.what)
        if remark.hint:
            notify(f"hint: {remark.hint}")
    resources.raise_trouble(troubles)


def _outcome(one: "Applied") -> str:
    """In kubectl's form: `dataset.data.fluid.io/imagenet created`."""
    group = one.api_version.partition("/")[0] if "/" in one.api_version else ""
    kind = one.key.kind.lower() + (f".{group}" if group else "")
    return f"{kind}/{one.key.name} {one.outcome}"


@click.command()
@click.argument("dataset")
@click.option(
    "--path", "paths", multiple=True, metavar="PATH", help="Only this file or folder. [/]"
)
@click.option("--page-cache", is_flag=True, help="Into the kernel's page cache as well.")
@namespace_option
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Return when the load is done."
)
def load(
    dataset: str, paths: tuple[str, ...], page_cache: bool, namespace: str | None, wait: bool
) -> None:
    """Fetch a data set, or paths of it, into its cache.

    Creates a DataLoad and shows its progress. Ctrl-C stops showing it, and the load continues:
    `penstock delete dataload NAME` stops the load.

    \b
    Example:
      penstock load imagenet --path /imagenet/train
    """
    from penstock.api import resources

    operation = resources.load(
        dataset, *paths, namespace=namespace or "default", page_cache=page_cache
    )
    click.echo(f"dataload.penstock.dev/{operation.name} created")
    if not wait:
        return
    try:
        with StatusLine() as status:
            operation.wait(progress=lambda now: status.draw(_load_line(now.name, now.progress)))
    except KeyboardInterrupt:
        notify(
            f"running in the background; check it with `penstock get dataload {operation.name} -w`"
        )
        raise click.exceptions.Abort from None
    notify(f"{_amounts(operation.progress)} in {operation.status.get('duration', '')}")
    if operation.progress.get("bytes", 0) < operation.progress.get("ofBytes", 0):
        notify("the rest does not fit: the cache is too small")


def _load_line(name: str, progress: dict[str, int]) -> str:
    return f"{name}: {_amounts(progress)}" if progress else f"{name}: waiting"


def _amounts(progress: dict[str, int]) -> str:
    return (
        f"{counted(progress.get('files', 0), 'file')}, {format_size(progress.get('bytes', 0))} of "
        f"{format_size(progress.get('ofBytes', 0))}"
    )


@click.command()
@click.argument("names", nargs=-1, metavar="[DATASET]...")
@namespace_option
@click.option("--restart", is_flag=True, help="Remount these data sets, with all their options.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Return when they are mounted."
)
def up(names: tuple[str, ...], namespace: str | None, restart: bool, wait: bool) -> int:
    """Mount declared data sets again, after a reboot or a failure.

    \b
    Example:
      penstock up
      penstock up --restart imagenet
    """
    from penstock.api import resources

    try:
        with _BindingProgress() as progress:
            troubles = resources.up(
                *names,
                namespace=namespace or "default",
                restart=restart,
                wait=wait,
                progress=progress.update,
            )
    except KeyboardInterrupt:
        notify(_BACKGROUND)
        raise click.exceptions.Abort from None
    for trouble in troubles:
        print_error(f"dataset {trouble.key.name}: {trouble.what}", trouble.hint, trouble.exit_code)
    return max((trouble.exit_code for trouble in troubles), default=0)


class _BindingProgress(StatusLine):
    """`imagenet: listing, 12,000 files, 1.2 GiB`."""

    def update(self, waiting: "list[Pair]") -> None:
        if waiting:
            more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            self.draw(f"{_binding_line(waiting[0])}{more}")


def _binding_line(pair: "Pair") -> str:
    status = pair.dataset.status if pair.dataset is not None else {}
    if str(status.get("fileNum", "")).endswith("+"):
        files = int(status["fileNum"].rstrip("+"))
        return f"{pair.name}: listing, {counted(files, 'file')}, {status['ufsTotal'].rstrip('+')}"
    return f"{pair.name}: mounting"


@click.command()
@click.argument("kind", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|-",
    help="Delete all that these manifests declare.",
)
@namespace_option
@click.option("--all", "all_of_kind", is_flag=True, help="All of KIND in the namespace.")
@click.option("--force", is_flag=True, help="Also while it is in use: readers get errors.")
@click.option("--ignore-not-found", is_flag=True, help="Succeed if a resource does not exist.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it is gone.")
def delete(
    kind: str | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str | None,
    all_of_kind: bool,
    force: bool,
    ignore_not_found: bool,
    wait: bool,
) -> None:
    """Delete resources: unmount data sets, stop jobs.

    Clears the cache unless the runtime keeps it; never touches the bucket. Refuses to delete a
    data set that is in use. A job is deleted with all its processes and logs.

    \b
    Example:
      penstock delete dataset imagenet
      penstock delete -f dataset.yaml
      penstock delete dataloads --all
      penstock delete job resnet
    """
    from penstock.api import resources

    if bool(files) == (kind is not None):
        raise OptionError("give either -f FILE or KIND NAME", hint="penstock delete --help")
    if kind is not None:
        find_kinds(kind, "delete", namespace)  # an unknown kind is reported before anything else
        if all_of_kind == bool(names):
            what = "--all and a name exclude each other" if names else f"which {kind}?"
            raise OptionError(what, hint=f"penstock delete {kind} NAME, or --all")
        if all_of_kind:
            keys = [one.key for one in resources.get_all(kind, namespace=namespace or "default")]
        else:
            found_kind = resources.find_kind(kind).kind
            keys = [
                resources.ResourceKey(found_kind, namespace or "default", name) for name in names
            ]
    else:
        from penstock.api.manifests import keys_to_delete

        keys = keys_to_delete(files, namespace=namespace)
    if all_of_kind and not keys:
        notify(f"no {kind} is declared in the namespace {namespace or 'default'}")
    found = resources.existing(keys)
    missing = [key for key in keys if key not in found]
    with StatusLine() as status:
        status.draw("deleting")
        resources.delete_keys(found, force=force, wait=wait)
    for key in found:
        click.echo(f"{key.kind.lower()}/{key.name} deleted")
    if missing and not ignore_not_found:
        raise NoSuchResource(
            "not found: " + ", ".join(f"{key.kind.lower()} {key.name}" for key in missing),
            hint="--ignore-not-found makes this no error",
        )
