"""What people tune in other runtimes: every name is acted on, told, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.planning import S3_DATASET, no_effects, plan, runtime

from penstock.errors import SpecProblem
from penstock.fluid.plan import MountPlan
from penstock.fluid.properties import ACTED_ON, Setting
from penstock.units import MIB

ALL = [(kind, setting) for kind, settings in ACTED_ON.items() for setting in settings]
ALLUXIO = "AlluxioRuntime"
WHERE = {"JuiceFSRuntime": "spec.fuse.options", "ThinRuntime": "spec.fuse.options"}


def with_names(kind: str, names: dict[str, str], args: list[str] | None = None) -> MountPlan:
    fuse: dict[str, Any] = {"args": args} if args else {}
    spec = {"fuse": {"options": names, **fuse}} if kind in WHERE else {"properties": names}
    return plan(S3_DATASET + runtime(kind, "  " + json.dumps({"fuse": fuse, **spec})))


def args(*words: str) -> MountPlan:
    return with_names(ALLUXIO, {}, list(words))


@pytest.mark.parametrize(("kind", "setting"), ALL, ids=lambda one: getattr(one, "name", one))
def test_each_supported_setting_changes_the_mount(kind: str, setting: Setting) -> None:
    beside = {}
    if setting.name == "alluxio.user.client.cache.size":
        beside = {"alluxio.user.client.cache.enabled": "true"}
    before = with_names(kind, beside)
    after = with_names(kind, {**beside, setting.name: setting.example})
    assert after.settings != before.settings
    assert not any(path.endswith(setting.name) for path in no_effects(after))
    if beside:  # the client's cache counts only where it is enabled
        alone = with_names(kind, {setting.name: setting.example})
        assert alone.settings.page_cache_bytes is None
        at = f"spec.properties.{setting.name}"
        assert no_effects(alone) == {at: "alluxio.user.client.cache.enabled is not true"}


def test_an_address_for_metrics_inside_a_pod_is_not_opened_on_this_machine() -> None:
    found = with_names("JuiceFSRuntime", {"metrics": "0.0.0.0:9567"})
    assert found.settings.metrics is None
    assert "inside a pod" in no_effects(found)["spec.fuse.options.metrics"]
    assert args("-ometrics=9567").settings.metrics == "127.0.0.1:9567"


@pytest.mark.parametrize(
    ("name", "text", "field", "value", "why"),
    [("alluxio.user.block.size.bytes.default", "512MB", "block_bytes", 64 * MIB, "larger"),
     ("alluxio.user.block.size.bytes.default", "100KB", "block_bytes", MIB // 8, "nearest"),
     ("alluxio.user.file.metadata.sync.interval", "0", "refresh_s", 10, "whole bucket"),
     ("alluxio.user.streaming.data.timeout", "2h", "deadline_s", 3600, "1 h"),
     ("alluxio.underfs.s3.threads.max", "2048", "threads", 512, "from 2 to 512")],
)  # fmt: skip
def test_the_nearest_bound_is_used(name: str, text: str, field: str, value: Any, why: str) -> None:
    found = with_names(ALLUXIO, {name: text})
    assert getattr(found.settings, field) == value
    (note,) = found.notes
    assert note.startswith(f"spec.properties.{name}: ")
    assert f"is used instead of {text}: " in note
    assert why in note


@pytest.mark.parametrize(
    ("kind", "settings", "field", "value"),
    [(ALLUXIO, {"alluxio.user.block.size.bytes.default": "64MB"}, "block_bytes", 64 * MIB),
     (ALLUXIO, {"alluxio.user.file.metadata.sync.interval": "-1"}, "refresh_s", None),
     (ALLUXIO, {"alluxio.user.file.metadata.sync.interval": "60000"}, "refresh_s", 60),
     (ALLUXIO, {"alluxio.user.metadata.cache.expiration.time": "2day"}, "attr_timeout_s", 172800),
     (ALLUXIO, {"alluxio.user.streaming.data.timeout": "300sec"}, "deadline_s", 300),
     (ALLUXIO, {"alluxio.worker.evictor.class": "a.block.evictor.LRUEvictor"}, "policy", "lru"),
     ("JuiceFSRuntime", {"buffer-size": "300"}, "buffer_bytes", 300 * MIB),
     ("JuiceFSRuntime", {"max-readahead": "64"}, "prefetch_blocks", 8),
     ("JuiceFSRuntime", {"allow_other": ""}, "allow_other", True),
     ("JuiceFSRuntime", {"cache-eviction": "none"}, "policy", "keep"),
     ("JuiceFSRuntime", {"cache-size": "0"}, "tiers", ()),
     ("JindoRuntime", {"fs.oss.download.thread.concurrency": "200"}, "threads", 200),
     ("JindoRuntime", {"fs.oss.read.readahead.max.buffer.count": "200",
                       "fs.oss.read.buffer.size": "8388608"}, "prefetch_blocks", 200),
     ("JindoRuntime", {"fs.oss.read.readahead.prefetch.size.max": "268435456"},
      "prefetch_blocks", 32),
     ("ThinRuntime", {"allow_other": "", "some-option": "x"}, "allow_other", True)],
)  # fmt: skip
def test_words_of_a_setting_are_translated(
    kind: str, settings: dict[str, str], field: str, value: Any
) -> None:
    found = with_names(kind, settings)
    assert getattr(found.settings, field) == value
    assert kind != ALLUXIO or found.notes == []


def test_the_juicefs_cache_folder_applies_without_a_level() -> None:
    options = {"cache-dir": "/a:/b", "cache-size": "2048"}
    (tier,) = with_names("JuiceFSRuntime", options).settings.tiers
    mine = "penstock/default/imagenet"
    assert tier.paths == (Path("/a") / mine, Path("/b") / mine)
    assert tier.quota_bytes == 2048 * MIB
    spec = "  fuse: {options: {cache-dir: /fuse/cache, cache-size: '0'}}\n"
    spec += "  tieredstore: {levels: [{mediumtype: SSD, path: /nvme}]}"
    found = plan(S3_DATASET + runtime("JuiceFSRuntime", spec))
    assert found.settings.tiers[0].paths == (Path("/nvme") / mine,)
    assert set(no_effects(found).values()) == {"tieredstore sets it"}


def test_client_settings_override_those_of_all_and_of_the_mount() -> None:
    name = "alluxio.user.block.size.bytes.default"
    spec = f"  properties: {{{name}: 16MB}}\n  fuse: {{properties: {{{name}: 4MB}}}}"
    assert plan(S3_DATASET + runtime("AlluxioRuntime", spec)).settings.block_bytes == 4 * MIB
    text = S3_DATASET.replace("s3://bucket/imagenet", "juicefs:///imagenet") + (
        "      options: {bucket: 'https://h/b', attr-cache: '1', entry-cache: '2', verbose: ''}\n"
    )
    found = plan(text + runtime("JuiceFSRuntime", "  fuse: {options: {attr-cache: '3'}}"))
    assert (found.settings.attr_timeout_s, found.settings.entry_timeout_s) == (3, 2)
    assert [one.path for one in found.of_dataset] == ["spec.mounts.0.options.verbose"]
    assert found.of_runtime == []


@pytest.mark.parametrize(
    ("kind", "name", "text", "hint"),
    [(ALLUXIO, "aluxio.user.block.size", "1", "alluxio.user.block.size.bytes.default"),
     ("JuiceFSRuntime", "cache-sise", "1", "cache-size"),
     ("JuiceFSRuntime", "subdir", "1", "juicefs:///SUBDIR"),
     ("JindoRuntime", "whatever", "1", "runtime-options.md"),
     (ALLUXIO, "alluxio.user.block.size.bytes.default", "big", ""),
     (ALLUXIO, "alluxio.user.streaming.data.timeout", "5fortnights", ""),
     (ALLUXIO, "alluxio.underfs.s3.threads.max", "many", "")],
)  # fmt: skip
def test_unknown_names_and_values_are_rejected(kind: str, name: str, text: str, hint: str) -> None:
    with pytest.raises(SpecProblem) as caught:
        with_names(kind, {name: text})
    assert caught.value.path == f"{WHERE.get(kind, 'spec.properties')}.{name}"
    assert hint in (caught.value.hint or "")


def test_fuse_arguments_are_parsed_in_each_spelling() -> None:
    for words in (
        ("fuse", "--fuse-opts=attr_timeout=60,entry_timeout=70,kernel_cache,ro"),
        ("-oattr_timeout=60", "-oentry_timeout=70", "-okernel_cache"),
        ("-o", "attr_timeout=60,entry_timeout=70"),
        ("--fuse-opts", "attr_timeout=60,entry_timeout=70"),
    ):
        found = args(*words)
        assert (found.settings.attr_timeout_s, found.settings.entry_timeout_s) == (60, 70)
        assert found.without_effect == []


def test_kernel_options_without_effect_are_reported_with_the_reason() -> None:
    words = "rw,allow_other,max_readahead=0,max_background=256,congestion_threshold=256"
    found = args("fuse", f"--fuse-opts=kernel_cache,{words}", "--verbose")
    assert found.settings.allow_other
    reported = [(one.path, one.reason.partition(":")[0]) for one in found.without_effect]
    names = ("rw", "max_readahead", "max_background", "congestion_threshold")
    assert reported == [
        ("spec.fuse.args.2", "it is an argument of the runtime's own FUSE program"),
        *(("spec.fuse.args.1", name) for name in names),
    ]


def test_an_unknown_kernel_option_is_rejected_except_for_custom_images() -> None:
    with pytest.raises(SpecProblem, match="atr_timeout is not an option") as caught:
        args("-oatr_timeout=60")
    assert caught.value.hint == "did you mean attr_timeout?"
    found = with_names("ThinRuntime", {}, ["-oatr_timeout=60"])
    assert "profile" in found.without_effect[0].reason
    with pytest.raises(SpecProblem, match="multiple of 4096"):
        args("-omax_read=17")
