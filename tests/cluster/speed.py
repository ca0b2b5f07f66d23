"""Reading in a pod through a claim, beside the same mount on the machine itself, in one run.

    python -m tests.cluster --nodes 1 python -m tests.cluster.speed --repeats 3

Both read the same bucket with the same reader, by turns, each from caches of its own in memory. It
also times the way from `kubectl apply` to Bound, and from a pod's creation to its first byte.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from tests.cluster.kube import Json, Kube, image_name
from tests.cluster.volumes import bucket_mount, dataset, keys_secret, pod, runtime
from tests.support.s3 import KEYS, S3

_NAMESPACE, _BUCKET = "speed", "speed"
_SMALL, _SMALL_BYTES = 4000, 110 * 1024
_LARGE, _LARGE_BYTES = 4, 128 << 20
_QUOTA = "2Gi"
_THREADS = 4
_CACHE = Path("/dev/shm/speed")

# Prints the rate of one pass: files/s of small files, MB/s of large ones.
_READER = """
import os, random, sys, threading, time
folder, kind, drop, threads = sys.argv[1], sys.argv[2], sys.argv[3] == "drop", int(sys.argv[4])
names = [f"{folder}/{kind}/{n}" for n in os.listdir(f"{folder}/{kind}")]
random.Random(time.time()).shuffle(names)
def each(work):
    shares = [threading.Thread(target=lambda s=s: [work(n) for n in names[s::threads]])
              for s in range(threads)]
    for one in shares: one.start()
    for one in shares: one.join()
if drop:
    def forget(name):
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    each(forget)
total = []
buffers = {}
def read(name):
    buffer = buffers.setdefault(threading.get_ident(), bytearray(1 << 20))
    fd = os.open(name, os.O_RDONLY)
    size = 0
    while got := os.readv(fd, [buffer]):
        size += got
    os.close(fd)
    total.append(size)
began = time.perf_counter()
each(read)
seconds = time.perf_counter() - began
print(len(names) / seconds if kind == "small" else sum(total) / 1e6 / seconds)
"""
# (row, kind, whether the page cache is dropped, whether the cache is emptied)
_ROWS = (("cold", False), ("cached", True), ("warm", False))


class _Pod:
    def __init__(self, kube: Kube, s3: S3) -> None:
        self._kube, self._s3 = kube, s3
        self._number = 0

    def start(self) -> Json:
        """A new data set, whose caches are empty, and a pod that can read it."""
        self._number += 1
        name = f"data-{self._number}"
        began = time.monotonic()
        self._kube.apply(
            dataset(name, bucket_mount(self._s3, _BUCKET)),
            runtime(name, tieredstore={"levels": [
                {"mediumtype": "MEM", "path": "/dev/shm", "quota": _QUOTA}
            ]}),
        )  # fmt: skip
        self._kube.wait_for_phase("dataset", name, "Bound")
        bound_s = time.monotonic() - began
        reader = pod(f"reader-{self._number}", name, "")
        container = reader["spec"]["containers"][0]
        container |= {"image": image_name(), "command": ["sleep", "3600"]}
        began = time.monotonic()
        self._kube.apply(reader)
        self._kube.wait_for(self._is_running, "the pod does not run", timeout_s=120, pause_s=0.05)
        started_s = time.monotonic() - began
        return {"bound_s": bound_s, "pod_s": started_s, "server_s": self._server_ready_s(name)}

    def read(self, kind: str, *, drop: bool) -> float:
        words = ["python3", "-c", _READER, "/data", kind, "drop" if drop else "", str(_THREADS)]
        return float(self._kube("exec", f"reader-{self._number}", "--", *words))

    def stop(self) -> None:
        name = f"data-{self._number}"
        self._kube("delete", "pod", f"reader-{self._number}")
        self._kube("delete", "dataset", name)

    def _is_running(self) -> bool:
        found = self._kube.get("pod", f"reader-{self._number}")
        return found.get("status", {}).get("phase") == "Running"

    def _server_ready_s(self, name: str) -> float:
        """From its creation to its container's start, as the API server has both."""
        selector = f"fluid.io/dataset={_NAMESPACE}-{name},penstock.dev/server"
        pods = [
            one for one in self._kube.list("pods", "--selector=penstock.dev/server")
            if one["metadata"]["name"].startswith(f"{name}-fuse")
        ]  # fmt: skip
        assert pods, selector
        created = pods[0]["metadata"]["creationTimestamp"]
        started = pods[0]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        return (_time(started) - _time(created)).total_seconds()


class _Machine:
    def __init__(self, s3: S3, folder: Path) -> None:
        self._s3 = s3
        self._mountpoint = folder / "mnt"
        self._mountpoint.mkdir(parents=True)
        self._environment = {**os.environ, **KEYS, "PENSTOCK_STATE_DIR": str(folder / "state")}

    def start(self) -> Json:
        self._run(
            "mount", f"s3://{_BUCKET}", str(self._mountpoint), "-b", "--allow-other",
            f"--endpoint={self._s3.endpoint}", f"--cache-dir={_CACHE}", "--cache-size=2GiB",
        )  # fmt: skip
        return {}

    def read(self, kind: str, *, drop: bool) -> float:
        words = [str(self._mountpoint), kind, "drop" if drop else "", str(_THREADS)]
        done = subprocess.run(
            [sys.executable, "-c", _READER, *words], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    def stop(self) -> None:
        self._run("umount", str(self._mountpoint))
        subprocess.run(["rm", "-rf", _CACHE], check=True)

    def _run(self, *words: str) -> None:
        command = [sys.executable, "-m", "penstock", *words]
        subprocess.run(command, env=self._environment, check=True, stderr=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    s3 = S3(os.environ["CLUSTER_S3"])
    bucket = s3.bucket(_BUCKET)
    for kind, count, size in (("small", _SMALL, _SMALL_BYTES), ("large", _LARGE, _LARGE_BYTES)):
        body = os.urandom(size)
        for number in range(count):
            (bucket / f"{kind}/{number}").write_bytes(body)
    kube = Kube(_NAMESPACE)
    kube("create", "namespace", _NAMESPACE)
    kube.apply(keys_secret())
    sides = {
        "pod": _Pod(kube, s3),
        "machine": _Machine(s3, Path(os.environ["CLUSTER_HOME"]) / "speed"),
    }
    rates: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    times: list[Json] = []
    for _ in range(args.repeats):
        for side in sides.values():
            times.append(side.start())
        for kind in ("small", "large"):
            for row, drop in _ROWS:
                for name, side in sides.items():
                    rates[kind, row, name].append(side.read(kind, drop=drop))
        for side in sides.values():
            side.stop()
    kube("delete", "namespace", _NAMESPACE, "--wait=false")
    print("| | pod | machine | pod / machine |\n| --- | ---: | ---: | ---: |")
    for kind in ("small", "large"):
        for row, _ in _ROWS:
            inside, outside = rates[kind, row, "pod"], rates[kind, row, "machine"]
            ratio = statistics.median(a / b for a, b in zip(inside, outside, strict=True))
            values = f"{statistics.median(inside):,.0f} | {statistics.median(outside):,.0f}"
            print(f"| {kind}, {row} | {values} | {ratio:.2f} |")
    for name in ("bound_s", "pod_s", "server_s"):
        found = [one[name] for one in times if name in one]
        print(f"{name}: " + ", ".join(f"{value:.2f}" for value in found))
    return 0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


if __name__ == "__main__":
    sys.exit(main())
