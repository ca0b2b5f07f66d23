"""A declared data set whose members of a shared tier run on this machine, and go with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.api import resources as api
from penstock.bench.workspace import free_port
from penstock.cache.members import Address
from penstock.errors import UsageError
from penstock.fluid.members import MemberPlan
from penstock.reconcile.members import run_members
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import condition, of_folder, path_of, phase
from tests.support.members import pid_of, status
from tests.support.mounts import fail, succeed
from tests.support.trees import write_tree
from tests.support.waiting import wait_until, wait_until_gone

Json = dict[str, Any]


def runtime(name: str, quota: str = "64Mi") -> Json:
    levels = [{"mediumtype": "MEM", "path": "/dev/shm", "quota": quota}]
    return {
        "apiVersion": "data.fluid.io/v1alpha1",
        "kind": "AlluxioRuntime",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "tieredstore": {"levels": levels}},
    }


def dataset(name: str, folder: Path, *members: str) -> Json:
    manifest = of_folder(name, folder)
    if members:
        shared = "memcached://" + ",".join(members)
        manifest["metadata"]["annotations"] = {"penstock.dev/shared": shared}
    return manifest


def cache_states(name: str) -> Json:
    return api.dataset(name).as_dict()["status"]["cacheStates"]


def members() -> list[Json]:
    return json.loads(succeed("shared", "status", "-o", "json"))


def test_members_are_started_filled_counted_and_stopped_with_their_data_set(
    declared: State, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {f"f{number}": bytes(1000) for number in range(20)})
    ports = free_port(), free_port()
    named = [f"127.0.0.1:{port}" for port in ports]
    api.apply([dataset("small", tmp_path / "source", *named), runtime("small")])
    assert [(one["port"], one["owner"], one["state"]) for one in members()] == [
        (port, "dataset/default/small", "running") for port in sorted(ports)
    ]
    pids = [pid_of(port) for port in ports]
    for number in range(20):
        assert (path_of("small") / f"f{number}").read_bytes() == bytes(1000)
    wait_until(lambda: sum(status(port)["stats"]["items"] for port in ports) == 20)
    wait_until(lambda: cache_states("small")["cacheCapacity"] == "128.00MiB")
    wait_until(lambda: cache_states("small")["cachedPercentage"] == "100.0%")
    said = fail("shared", "stop", "--port", str(ports[0]))
    assert f"{named[0]} was started for dataset/default/small" in said
    assert "hint: it is stopped when the data set is deleted" in said
    succeed("delete", "dataset", "small")
    for pid in pids:
        wait_until_gone(pid)
    assert members() == []


def test_a_member_of_another_machine_is_not_started_here(declared: State, source: Path) -> None:
    port = free_port()
    named = dataset("small", source, "192.0.2.1:11211", f"127.0.0.1:{port}")
    api.apply([named, runtime("small")])
    assert [one["port"] for one in members()] == [port]
    assert (path_of("small") / "file").read_bytes() == b"bytes"


def test_a_machine_that_is_named_twice_with_one_port_is_refused() -> None:
    two = (Address("127.0.0.1", 11211), Address("localhost", 11211))
    with pytest.raises(UsageError, match="are one machine"):
        run_members(MemberPlan(two, 64 << 20, None), ResourceKey("Dataset", "default", "small"))


def test_members_follow_a_changed_manifest(declared: State, source: Path) -> None:
    first, second = free_port(), free_port()
    api.apply([dataset("small", source, f"127.0.0.1:{first}"), runtime("small")])
    pid = pid_of(first)
    api.apply([runtime("small", "65Mi")])
    assert status(first)["stats"]["limit_bytes"] == 65 << 20
    wait_until_gone(pid)
    api.apply([dataset("small", source, f"127.0.0.1:{second}")])
    assert [one["port"] for one in members()] == [second]
    api.apply([dataset("small", source)])
    assert members() == []
    assert phase("small") == "Bound"


def test_a_member_that_cannot_start_leaves_the_data_set_unbound_with_the_reason(
    declared: State, source: Path
) -> None:
    port = free_port()
    succeed("shared", "start", "--memory", "64MiB", "--port", str(port))
    named = dataset("small", source, f"127.0.0.1:{port}")
    try:
        api.apply([named, runtime("small")], wait=False)
        wait_until(lambda: "belongs to a member that a person started" in str(condition("small")))
    finally:
        succeed("shared", "stop", "--port", str(port))
    api.apply([named, runtime("small")])
    assert phase("small") == "Bound"
