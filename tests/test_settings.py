"""Every setting of a mount is declared once, and found wherever options are shown or changed."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import OptionError
from penstock.mount_options import change_settings, known_names, make_settings, read_texts
from penstock.settings import (
    OPTION_OF_FIELD,
    OPTIONS,
    STORE_OPTIONS,
    Change,
    MountSettings,
    Part,
    decode,
    describe_changes,
    encode,
    hold_back,
    needs_new_mount,
    options_of,
)
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys
from penstock.store.source import parse_source

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs/reference/mount-options.md").read_text()
# Set by the program itself, never by an option.
WITHOUT_OPTION = {"mountpoint", "catalog", "title"}
# Another value for each, as a person would write it.
OTHER_TEXT = {
    "mode": "passthrough", "refresh": "never", "policy": "lru", "block-size": "4MiB",
    "prefetch": "0", "buffer-size": "64MiB", "page-cache": "1GiB", "memory": "2GiB", "threads": "8",
    "workers": "2", "attr-cache": "1s", "entry-cache": "1s", "uid": "7", "gid": "8",
    "file-mode": "0400", "dir-mode": "0500", "max-files": "5", "watchdog": "5s", "give-up": "1m",
    "grace": "1s", "allow-other": "true", "endpoint": "http://127.0.0.1:1", "region": "eu",
    "anonymous": "true", "manifest": "/list", "deadline": "5s", "verify-store": "never",
    "cache-dir": "/a", "cache-size": "1GiB", "tier": "SSD:/b:1GiB", "no-cache": "true",
    "shared": "memcached://a,b:2", "shared-key": "/key", "metrics": "9567",
}  # fmt: skip


@pytest.fixture
def settings() -> MountSettings:
    part = Part("", parse_source("s3://bucket/prefix"), StoreOptions(keys=Keys("id", "secret")))
    return make_settings((part,), Path("/mnt"), {"cache-dir": ("/cache",)})


@pytest.mark.parametrize("command", ["mount", "upgrade"])
def test_every_option_is_in_the_help_with_its_default(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], terminal_width=200).output
    text = re.sub(r"\s+", " ", shown)
    for name, option in OPTIONS.items():
        assert f"--{name}" in text
        assert option.help, name
        assert option.help in text, name
        if default := option.default_means or option.default:
            assert f"[default: {default}" in text, name


def test_every_field_is_in_the_reference_with_what_a_change_needs() -> None:
    for one in fields(MountSettings):
        for option in options_of(one):
            if one.name in WITHOUT_OPTION:
                assert (option.name, option.kernel) == ("", "")
                continue
            needed = option.change.name.replace("_", "-" if "HAND" in option.change.name else " ")
            for name in (f"--{option.name}" if option.name else "", option.kernel):
                row = rf"\| `{re.escape(name)}[ =`].*\| {needed.lower()} \|"
                assert not name or re.search(row, REFERENCE), name


def test_every_store_field_has_an_option_except_keys_and_manifest_fields() -> None:
    names = {one.name for one in fields(StoreOptions)}
    assert names - {"keys", "path_style", "juicefs"} == set(STORE_OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_changed_option_is_applied_or_rejected_in_a_mount_in_use(
    settings: MountSettings, name: str
) -> None:
    option = OPTIONS[name]
    values = read_texts({name: OTHER_TEXT[name]})
    if option.change is Change.NEW_MOUNT:
        with pytest.raises(OptionError, match="cannot change while it is mounted"):
            change_settings(settings, values)
        store = {
            field: values[one.name] for field, one in STORE_OPTIONS.items() if one.name in values
        }
        parts = tuple(replace(part, store=replace(part.store, **store)) for part in settings.parts)
        wanted = make_settings(parts, Path("/mnt"), values, settings.tiers)
        assert needs_new_mount(settings, wanted) == [option.title]
    else:
        wanted = change_settings(settings, values)
        assert wanted != settings
        assert needs_new_mount(settings, wanted) == []
    assert decode(encode(wanted)) == wanted


def test_only_what_needs_a_new_mount_waits_for_one(settings: MountSettings) -> None:
    values = read_texts({"cache-dir": "/cache", "cache-size": "3GiB", "prefetch": "8"})
    wanted = make_settings(settings.parts, Path("/mnt"), {**values, "o": ("max_read=131072",)})
    possible, waiting = hold_back(settings, wanted)
    assert waiting == ["the largest read"]
    assert possible == replace(wanted, max_read_bytes=settings.max_read_bytes)
    assert describe_changes(settings, possible) == [
        "cache SSD 90% of free to SSD 3.0 GiB",
        "prefetch",
    ]
    assert hold_back(settings, possible) == (possible, [])


def test_a_mount_that_is_to_be_closed_to_others_gets_new_keys_but_no_new_folder(
    settings: MountSettings,
) -> None:
    settings = replace(settings, catalog="default.imagenet")
    open_to_all = replace(settings, allow_other=True)
    rotated = replace(settings.parts[0], store=StoreOptions(keys=Keys("id", "rotated")))
    private = Part("private", parse_source("file:///home/me"))
    possible, waiting = hold_back(open_to_all, replace(settings, parts=(rotated, private)))
    assert waiting == ["who may read it", "where the store is"]
    assert possible == replace(open_to_all, parts=(rotated,))
    assert describe_changes(open_to_all, possible) == ["keys or options of s3://bucket/prefix"]


def test_options_that_are_not_given_keep_their_values(settings: MountSettings) -> None:
    small = change_settings(settings, read_texts({"memory": "200MiB", "threads": "8"}))
    assert (small.threads, small.parts, small.tiers) == (8, settings.parts, settings.tiers)
    assert small.buffer_bytes == (200 - 128) // 2 << 20, "as much as the memory allows"
    large = change_settings(small, read_texts({"memory": "4GiB", "block-size": "36MiB"}))
    assert (large.block_bytes, large.threads) == (36 << 20, 8)


@pytest.mark.parametrize(
    ("text", "address"),
    [("9567", "127.0.0.1:9567"), ("localhost:1", "localhost:1"), ("[::1]:80", "[::1]:80"),
     ("0.0.0.0:65535", "0.0.0.0:65535"), ("off", None)],
)  # fmt: skip
def test_metrics_are_on_loopback_unless_a_host_is_given(text: str, address: str | None) -> None:
    assert OPTIONS["metrics"].read(text) == address
    assert make_settings((), Path("/mnt"), {"o": (f"metrics={text}",)}).metrics == address


@pytest.mark.parametrize("text", ["", "0", "65536", ":9567", "a/b:80", "::1:80", "host:", "on"])
def test_an_address_that_is_none_is_rejected_with_what_to_write(text: str) -> None:
    with pytest.raises(OptionError, match="--metrics") as raised:
        OPTIONS["metrics"].read(text)
    assert "0.0.0.0:9567" in str(raised.value.hint)


def test_words_of_o_set_option_fields_and_long_options_take_precedence() -> None:
    words = "attr_timeout=7,uid=3,no_resend,allow_other,max_read=4096,fsname=data,nonempty"
    found = make_settings((), Path("/mnt"), {"o": (words,), "uid": 4, "no-cache": True})
    assert (found.attr_timeout_s, found.uid, found.kernel_resend) == (7.0, 4, False)
    assert (found.allow_other, found.max_read_bytes, found.name) == (True, 4096, "data")
    assert found.nonempty
    assert known_names() == {one.kernel for one in OPTION_OF_FIELD.values() if one.kernel}
