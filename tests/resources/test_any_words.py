"""Whatever is written: a plan, or an error that says where. Never another exception."""

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.daemon.mount_options import OPTIONS
from penstock.errors import SpecProblem
from penstock.resources.translate.properties import ACTED_ON
from penstock.resources.translate.stores import FAMILIES, USED
from tests.support.planning import plan

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", "0", "-1", "1", "true", "²", "1e999", "http://[", "https://x:99999", "a:b", "//", "s3://",
         "9" * 400, "1KB", "5m", "/", "gs://b", "https://h/b", "b.c.d.e"]
    ),
)  # fmt: skip
STORE_NAMES = sorted(
    {name for family in USED.values() for names in family.values() for name in names}
)
SCHEMES = st.sampled_from([scheme for scheme in FAMILIES if scheme not in ("dataset", "minio")])


def planned(mounts: list[Any], kind: str, spec: dict[str, Any]) -> None:
    head = {"apiVersion": "penstock.dev/v1alpha1", "metadata": {"name": "imagenet"}}
    dataset = {**head, "kind": "Dataset", "spec": {"mounts": mounts}}
    text = yaml.safe_dump_all([dataset, {**head, "kind": kind, "spec": spec}])
    with contextlib.suppress(SpecProblem):
        plan(text, checked=False)


@settings(max_examples=50, deadline=None)
@given(
    scheme=SCHEMES,
    options=st.dictionaries(st.sampled_from(STORE_NAMES), TEXTS, max_size=5),
)
@example(scheme="s3", options={"endpoint": "http://["})
@example(scheme="juicefs", options={"bucket": "http://[/x"})
@example(scheme="az", options={"fs.azure.account.key.*.*": "x"})
def test_options_of_mounts(scheme: str, options: dict[str, str]) -> None:
    rest = "/folder" if scheme in ("file", "local") else "bucket/prefix"
    mount = {"mountPoint": f"{scheme}://{rest}", "name": "x", "options": options}
    planned([mount], "JuiceFSRuntime", {})


@pytest.mark.parametrize("kind", ["AlluxioRuntime", "JindoRuntime", "JuiceFSRuntime"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_settings_of_runtimes(kind: str, data: st.DataObject) -> None:
    names = st.sampled_from([setting.name for setting in ACTED_ON[kind]])
    given_names = data.draw(st.dictionaries(names, TEXTS, max_size=5))
    of = "options" if kind == "JuiceFSRuntime" else "properties"
    spec = {"fuse": {of: given_names}}
    planned([{"mountPoint": "s3://b", "name": "x"}], kind, spec)


@settings(max_examples=40, deadline=None)
@given(
    options=st.dictionaries(st.sampled_from([*OPTIONS, "max_read", "x"]), TEXTS, max_size=4),
    words=st.lists(TEXTS, max_size=3),
)
@example(options={"threads": "²"}, words=[])
@example(options={"memory": "9" * 400}, words=[])
def test_options_of_our_own_runtime_and_arguments(
    options: dict[str, str], words: list[str]
) -> None:
    mounts = [{"mountPoint": "s3://b", "name": "x"}]
    planned(mounts, "PenstockRuntime", {"options": options})
    planned(mounts, "AlluxioRuntime", {"fuse": {"args": [f"-o{word}" for word in words]}})
