"""Measures the operator with many Datasets: python -m tests.cluster.scale --datasets 1,200,1000

A control plane, fake nodes by kwok, and the operator as a process beside them. For each number of
Datasets with runtimes, created at once: the time until all are Bound with their claims, the
operator's CPU time, memory and requests, the same at rest, and the time until all are gone again.
Prints a Markdown table beside what Fluid 1.0.8 needs on the same kind of machine.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from penstock.kubernetes.client import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMON_SETS,
    DATASETS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RUNTIMES,
    Client,
    Resource,
)
from penstock.kubernetes.watch import Cache, wait_for_sync
from tests.cluster.kit import ROOT, find_kit, run_to_its_end, running_cluster
from tests.support.waiting import wait_until

Json = dict[str, Any]

PORT = 8080
NAMESPACE = "scale"
ALLUXIO = RUNTIMES["AlluxioRuntime"]
_CREATING = 8
# From shared/cluster/README.md, by number of Datasets: seconds to Bound, CPU seconds of controllers
# and helm, requests for each, MiB of both controllers, requests a minute at rest, seconds to gone.
FLUID: dict[int, tuple[str, ...]] = {
    1: ("1.5", "0.31", "27", "86", "120", "1.5"),
    50: ("20", "14.5", "28", "103", "119", "37"),
    200: ("80", "47.4", "27.6", "125", "120", "156"),
    1000: ("428", "284", "27.4", "254", "121", "—"),
}
HEADER = (
    "| Datasets | Bound, s | with claims, s | CPU s, each | requests each | peak MiB "
    "| CPU s / requests a minute at rest | gone, s "
    "| Fluid 1.0.8: Bound s, CPU s each, requests each, MiB, requests a minute, gone s |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.scale")
    parser.add_argument("--datasets", default="1,200,1000,5000")
    parser.add_argument("--fake", type=int, default=20, help="nodes")
    parser.add_argument("--rest", type=float, default=60, help="seconds")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="delete nothing: the controller manager lets go of 20 claims a second",
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        counts = [int(one) for one in args.datasets.split(",")]
        return measure(counts, args.rest, keep=args.keep)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    kit = find_kit()
    with running_cluster(kit, nodes=0, fake_nodes=args.fake) as cluster:
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        network = ["nsenter", "--target", str(cluster.network_pid), "--net"]
        again = [sys.executable, "-m", "tests.cluster.scale", *sys.argv[1:], "--inside"]
        return run_to_its_end([*network, *again], environment)


def measure(counts: list[int], rest_s: float, *, keep: bool) -> int:
    client = Client.from_environment()
    install_definitions(client)
    print(HEADER, flush=True)
    for count in counts:
        with operator() as found:
            print(measure_one(client, count, rest_s, found, keep=keep), flush=True)
    return 0


def install_definitions(client: Client) -> None:
    for file in sorted((ROOT / "deploy" / "chart" / "crds").glob("*.yaml")):
        client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(file.read_text()))
    client.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )

    def served() -> bool:
        found = client.list(CUSTOM_RESOURCE_DEFINITIONS)
        return all(
            any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in one.get("status", {}).get("conditions", [])
            )
            for one in found
        )

    wait_until(served, lambda: "the CRDs are not established", timeout_s=60)


@contextmanager
def operator() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "penstock", "operator", "--image=localhost/penstock:1"]
    # Its requests are counted, and renewals of a lease shall not be among them.
    command += ["--no-leader-elect", f"--http-port={PORT}"]
    log = Path(os.environ.get("SCALE_LOG", os.devnull))
    with open(log, "ab") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            wait_until(lambda: is_ready(process), lambda: "the operator is not ready", timeout_s=60)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def is_ready(process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "the operator has ended"
    try:
        return metrics().get("penstock_operator_caches_synced") == 1
    except OSError:
        return False


def metrics() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def requests_of(found: dict[str, float]) -> float:
    return sum(
        value for name, value in found.items() if name.startswith("penstock_operator_requests")
    )


def measure_one(
    client: Client,
    count: int,
    rest_s: float,
    process: "subprocess.Popen[bytes]",
    *,
    keep: bool,
) -> str:
    names = [f"demo-{number}" for number in range(count)]
    phases = follow(client, DATASETS, lambda one: one.get("status", {}).get("phase") or "")
    claims = follow(
        client, PERSISTENT_VOLUME_CLAIMS, lambda one: one.get("status", {}).get("phase") or ""
    )
    caches = [phases, claims, *(follow(client, one, lambda _: "there") for one in OTHERS)]
    wait_for_sync(caches, 60)
    before, began = metrics(), time.monotonic()
    with ThreadPoolExecutor(_CREATING) as pool:
        list(pool.map(lambda name: create(client, name), names))
    created_s = time.monotonic() - began
    bound_s = wait_for_phases(phases, count, began)
    claims_s = wait_for_phases(claims, count, began)
    wait_for_quiet()
    first = metrics()
    time.sleep(rest_s)
    last = metrics()
    minutes = rest_s / 60
    rest_cpu = (last[CPU] - first[CPU]) / minutes
    rest_requests = (requests_of(last) - requests_of(first)) / minutes
    gone_s = "—" if keep else f"{delete_all(client, names, caches):.1f}"
    for cache in caches:
        cache.stop()
    peak = peak_mib(process.pid)
    print(
        f"{count}: created in {created_s:.1f} s; settled with {requests_of(first) / count:.1f} "
        f"requests each: {verbs_of(before, first)}",
        file=sys.stderr,
    )
    cpu = (first[CPU] - before[CPU]) / count
    asked = (requests_of(first) - requests_of(before)) / count
    fluid = list(FLUID.get(count, ("—",) * 6))
    if fluid[1] != "—":
        fluid[1] = f"{float(fluid[1]) / count:.2f}"
    return (
        f"| {count:,} | {bound_s:.1f} | {claims_s:.1f} | {cpu:.3f} | {asked:.1f} | {peak:.0f} | "
        f"{rest_cpu:.2f} / {rest_requests:.1f} | {gone_s} | {', '.join(fluid)} |"
    )


def verbs_of(before: dict[str, float], after: dict[str, float]) -> str:
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return ", ".join(
        f"{value:.0f} {name.partition(chr(34))[2].strip(chr(34) + '}')}"
        for name, value in found.items()
        if name.startswith("penstock_operator_requests") and value
    )


def wait_for_phases(cache: Cache[str], count: int, began_s: float) -> float:
    """Wait until all are Bound; return the seconds since the beginning."""
    wait_for(
        lambda: cache.values().count("Bound") == count,
        lambda: f"{cache.values().count('Bound')} {cache.resource} are Bound",
        timeout_s=60 + count,
    )
    return time.monotonic() - began_s


def delete_all(client: Client, names: list[str], caches: list[Cache[str]]) -> float:
    """Delete the Datasets; return the seconds until nothing is left of them."""
    began = time.monotonic()
    with ThreadPoolExecutor(_CREATING) as pool:
        list(pool.map(lambda name: client.delete(DATASETS, NAMESPACE, name), names))
    wait_for(
        lambda: not any(map(len, caches)),
        lambda: json.dumps({str(one.resource): len(one) for one in caches}),
        timeout_s=120 + len(names),
    )
    return time.monotonic() - began


CPU = "process_cpu_seconds_total"
OTHERS = (ALLUXIO, PERSISTENT_VOLUMES, DAEMON_SETS)


def follow(client: Client, resource: Resource, keep: Callable[[Json], str]) -> Cache[str]:
    return Cache(client, resource, keep=keep).start()


def wait_for(done: Callable[[], bool], state: Callable[[], str], *, timeout_s: float) -> None:
    wait_until(done, state, timeout_s=timeout_s, pause_s=0.2)


def wait_for_quiet() -> None:
    """Wait until the operator has sent nothing for five seconds."""
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < 5:
        time.sleep(0.5)
        if (now := requests_of(metrics())) != seen:
            seen, since = now, time.monotonic()


def create(client: Client, name: str) -> None:
    metadata = {"name": name, "namespace": NAMESPACE}
    mount = {
        "mountPoint": f"s3://bucket/{name}",
        "name": name,
        "options": {"alluxio.underfs.s3.endpoint": "http://10.244.0.1:9000"},
        "encryptOptions": [
            {
                "name": "aws.accessKeyId",
                "valueFrom": {"secretKeyRef": {"name": "keys", "key": "id"}},
            },
            {"name": "aws.secretKey", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        ],
    }
    levels = [{"mediumtype": "SSD", "path": "/var/cache", "quota": "10Gi"}]
    client.create(
        DATASETS,
        {
            "apiVersion": DATASETS.group_version,
            "kind": "Dataset",
            "metadata": metadata,
            "spec": {"mounts": [mount]},
        },
    )
    client.create(
        ALLUXIO,
        {
            "apiVersion": ALLUXIO.group_version,
            "kind": ALLUXIO.kind,
            "metadata": metadata,
            "spec": {"replicas": 1, "tieredstore": {"levels": levels}},
        },
    )


def peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


if __name__ == "__main__":
    sys.exit(main())
