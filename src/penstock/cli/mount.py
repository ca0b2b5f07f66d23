"""penstock mount: a bucket as a read-only directory."""

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import Context
from click.types import OptionHelpExtra

from penstock.cli.output import Listing, notify
from penstock.daemon.mount_lifecycle import become_supervisor, start_supervisor
from penstock.daemon.mount_registry import clear_dead_mount, resolve_mountpoint
from penstock.mount_options import make_settings, store_options
from penstock.settings import OPTIONS, Option, Part
from penstock.store.source import parse_source

# The options of a mount on the command line, for `mount` and `upgrade` alike. They have no default
# for click, so that `given` can tell what the user wrote; --help shows the default of the settings.

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _MountOption(click.Option):
    def __init__(self, *names: Any, default_text: str | None, **words: Any) -> None:
        super().__init__(*names, **words)
        self._default_text = default_text

    def get_help_extra(self, ctx: Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        return extra if self._default_text is None else {**extra, "default": self._default_text}


def _click_option(option: Option) -> Decorator:
    words: dict[str, Any] = {"metavar": option.metavar, "multiple": option.repeatable}
    if option.flag:
        words["is_flag"] = True
    elif option.choices:
        words["type"] = click.Choice(option.choices)
    elif option.least is not None:
        words["type"] = click.IntRange(option.least, option.most)
    default_text = option.default_means or option.default
    return click.option(
        option.label, cls=_MountOption, default_text=default_text, help=option.help, **words
    )


_KERNEL_OPTIONS = click.option(
    "-o",
    multiple=True,
    metavar="OPT[,OPT]",
    help="Options as of libfuse: kernel_cache,ro,max_read=131072,attr_timeout=7200…",
)


def with_mount_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed([*map(_click_option, OPTIONS.values()), _KERNEL_OPTIONS]):
        command = option(command)
    return command


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that the user wrote, by their long names."""
    found: dict[str, Any] = {}
    for parameter, value in options.items():
        name = parameter.replace("_", "-")
        if value is None or value is False or value == ():
            continue
        option = OPTIONS.get(name)
        if option is not None and option.repeatable:
            value = tuple(option.read(one) for one in value)
        elif option is not None and isinstance(value, str):
            value = option.read(value)
        found[name] = value
    return found


@click.command()
@click.argument("source")
@click.argument("mountpoint")
@click.option(
    "-b",
    "--background",
    "in_background",
    is_flag=True,
    help="Return when the mount is ready; it is served by processes of its own.",
)
@with_mount_options
def mount(source: str, mountpoint: str, in_background: bool, **options: Any) -> None:
    """Mount a bucket as a read-only directory.

    SOURCE is s3://bucket/prefix, oss://, bos://, gs://, az://, https:// or file:///path.
    Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, AWS profiles and roles.

    \b
    Example:
      penstock mount s3://bucket/imagenet /mnt/imagenet --cache-dir /nvme/cache --cache-size 200GiB
    """
    values = given(options)
    part = Part("", parse_source(source), store_options(values))
    settings = make_settings((part,), resolve_mountpoint(mountpoint), values)
    if clear_dead_mount(settings.mountpoint):
        notify(f"cleared away a dead mount at {settings.mountpoint}")
    if not in_background:
        become_supervisor(settings)
    with Listing(settings.shown) as listing:
        lines = start_supervisor(settings, progress=listing.update)
    for line in lines:
        notify(line)
