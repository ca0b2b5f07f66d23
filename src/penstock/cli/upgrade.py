"""penstock upgrade: another server for a mount that is in use."""

import os
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli.mount import read_settings, with_mount_options
from penstock.cli.output import notify
from penstock.daemon.change import WHERE, cannot_change, change_in_place, current_settings
from penstock.daemon.registry import absolute, find_note
from penstock.environment import CLOUDS
from penstock.errors import OptionError
from penstock.kernel_options import parse_kernel_options
from penstock.settings import BASE_MEMORY_BYTES, MEMORY_A_BUFFERED_BYTE, MountSettings

# Which fields of the settings each option decides.
_STORE = {
    "endpoint": "endpoint", "region": "region", "anonymous": "anonymous", "manifest": "manifest",
    "deadline": "deadline_s", "verify_store": "verify",
}  # fmt: skip
_PLACE = {"endpoint", "region", "anonymous", "manifest"}
_FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_STORE, ("parts",)),
    "mode": ("mode",), "refresh": ("refresh_s",), "policy": ("policy",),
    "cache_dir": ("tiers",), "cache_size": ("tiers",), "tier": ("tiers",), "no_cache": ("tiers",),
    "block_size": ("block_bytes",), "prefetch": ("prefetch_blocks",),
    "page_cache": ("page_cache_bytes",), "buffer_size": ("buffer_bytes",), "threads": ("threads",),
    "workers": ("workers",),
    "attr_cache": ("attr_timeout_s",), "entry_cache": ("entry_timeout_s",), "uid": ("uid",),
    "gid": ("gid",), "file_mode": ("file_mode",), "dir_mode": ("dir_mode",),
    "memory": ("memory_bytes", "buffer_bytes"), "max_files": ("max_files",),
    "watchdog": ("watchdog_s",), "grace": ("grace_s",), "give_up": ("give_up_s",),
    "allow_other": ("allow_other",),
}  # fmt: skip
# What the kernel was told once and for all, or what the mount is.
_FIXED = {
    "mode": "--mode", "allow_other": "--allow-other",
    "max_read_bytes": "-o max_read", "name": "-o fsname", "nonempty": "-o nonempty",
    "kernel_resend": "-o no_resend",
}  # fmt: skip


@click.command()
@click.argument("mountpoint")
@with_mount_options
@click.pass_context
def upgrade(context: click.Context, mountpoint: str, **options: Any) -> None:
    """Replace the server of a mount that is in use.

    The new one is of this release, with the options given here and the keys of your environment.

    Readers see a pause and nothing else. Options that are not given stay as they are. If the new
    server cannot start, the old one goes on.

    \b
    Example:
      penstock upgrade /mnt/imagenet --threads 64
    """
    path = absolute(mountpoint)
    current = current_settings(path)
    given = {
        name
        for name in options
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    pause_s = change_in_place(path, changed(current, options, given), environment=_credentials())
    notify(
        f"{path} is served by a new server (pid {find_note(path).server_pid}); "
        f"readers waited for {pause_s * 1000:.0f} ms"
    )


def changed(current: MountSettings, options: dict[str, Any], given: set[str]) -> MountSettings:
    """The settings of a running mount with the given options, if a running mount can have them."""
    # Only the options of this source are looked at, and those are every part's.
    fresh = read_settings("file:///", str(current.mountpoint), options)
    names = {field for name in given if name in _FIELDS for field in _FIELDS[name]}
    names |= set(parse_kernel_options(options["o"]))
    if "cache_size" in given and not given & {"cache_dir", "tier", "no_cache"}:
        if len(current.tiers) != 1:
            raise OptionError("--cache-size: this mount has several tiers", hint="say --tier")
        names.discard("tiers")
        quota = fresh.tiers[0].quota_bytes
        current = replace(current, tiers=(replace(current.tiers[0], quota_bytes=quota),))
    said = fresh.parts[0].store
    store = {field: getattr(said, field) for name, field in _STORE.items() if name in given}
    parts = tuple(replace(part, store=replace(part.store, **store)) for part in current.parts)
    fresh = replace(fresh, parts=parts)
    if not {"memory", "buffer_size"} <= given:  # each bounds the other, whichever was said
        memory = fresh.memory_bytes if "memory" in given else current.memory_bytes
        buffer = fresh.buffer_bytes if "buffer_size" in given else current.buffer_bytes
        room = (memory - BASE_MEMORY_BYTES) // MEMORY_A_BUFFERED_BYTE
        fresh = replace(fresh, memory_bytes=memory, buffer_bytes=min(buffer, room))
    if given & _PLACE and fresh.parts != current.parts:
        raise cannot_change(WHERE, current.mountpoint)
    for name in names & set(_FIXED):
        if getattr(fresh, name) != getattr(current, name):
            raise cannot_change(_FIXED[name], current.mountpoint)
    return replace(current, **{name: getattr(fresh, name) for name in names})


def _credentials() -> dict[str, str | None]:
    """Keys that were rotated since: the new server gets those of whoever asks for it."""
    found: dict[str, str | None] = {
        name: value for name, value in os.environ.items() if name.startswith(CLOUDS)
    }
    if "AWS_ACCESS_KEY_ID" in found:
        found.setdefault("AWS_SESSION_TOKEN", None)  # that of the old key does not go with it
    return found
