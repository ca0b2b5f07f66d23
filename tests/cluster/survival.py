"""Readers on two nodes, while everything that serves them is killed, deleted and upgraded.

    python -m tests.cluster python -m tests.cluster.survival --rounds 100 --readers 8

Each reader reads random files past its page cache and compares every byte. Each round does one of
the events below, and waits until the pods are Ready again. In the middle, one `helm upgrade`
replaces everything. It prints what readers saw, and exits with 1 if there was an error or a wrong
byte.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.helm import CHART, RELEASE
from tests.cluster.kube import SYSTEM, Json, Kube, image_name, on_node
from tests.cluster.volumes import bucket_mount, dataset, keys_secret, runtime
from tests.support.s3 import S3
from tests.support.waiting import runs, wait_until

_NAMESPACE = "survival"
_FILES, _FILE_BYTES = 400, 110 * 1024
_LARGE, _LARGE_BYTES = 4, 24 << 20
_RECOVERS_WITHIN_S = 90.0
# Between events, so that readers read with everything in place, too.
_CALM_S = 0.5
_BUCKET = "survival"

# Content follows from the name, so that a reader knows it without a list.
_CONTENT = """
import hashlib
def content(name, size):
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]
"""
_READER = (
    _CONTENT
    + """
import json, os, random, signal, sys, time
ended = False
def end(*_):
    global ended
    ended = True
signal.signal(signal.SIGTERM, end)
names = [(n, os.stat(f"/data/{n}").st_size) for n in sorted(os.listdir("/data"))]
seen = {"reads": 0, "bytes": 0, "errors": [], "wrong": [], "longest_s": 0.0, "slow": []}
print("reading", flush=True)
while not ended:
    name, size = random.choice(names)
    began = time.monotonic()
    try:
        fd = os.open(f"/data/{name}", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        os.close(fd)
        seen["reads"] += 1
        seen["bytes"] += len(data)
        if data != content(name, size):
            seen["wrong"].append(name)
    except OSError as error:
        seen["errors"].append(f"{name}: {error}")
        time.sleep(0.2)
    took = time.monotonic() - began
    seen["longest_s"] = max(seen["longest_s"], took)
    if took > 0.5:
        seen["slow"].append((time.time(), took))
print(json.dumps(seen), flush=True)
"""
)


@dataclass
class Outcome:
    events: Counter[str]
    seconds: float
    reads: int
    read_bytes: int
    errors: list[str]
    wrong: list[str]
    longest_s: float
    longest_by_event: dict[str, float]

    def describe(self) -> str:
        events = ", ".join(f"{name} {count}" for name, count in sorted(self.events.items()))
        return (
            f"{sum(self.events.values())} events in {self.seconds:.0f} s: {events}\n"
            f"{self.reads:,} reads, {self.read_bytes / 1e9:.1f} GB, {len(self.errors)} errors, "
            f"{len(self.wrong)} wrong; longest read {self.longest_s:.2f} s\n"
            + "\n".join(f"  {one}: {took:.2f} s" for one, took in self.longest_by_event.items())
        )


def survive(s3: S3, *, rounds: int, readers: int, seed: int, upgrade: bool) -> Outcome:
    kube = Kube(_NAMESPACE)
    kube("create", "namespace", _NAMESPACE)
    try:
        return _Survival(kube, s3, rounds, readers, random.Random(seed), upgrade).run()
    finally:
        kube("delete", "namespace", _NAMESPACE, "--wait=false")


class _Survival:
    def __init__(
        self, kube: Kube, s3: S3, rounds: int, readers: int, chance: random.Random, upgrade: bool
    ) -> None:
        self._kube, self._s3 = kube, s3
        self._system = Kube(SYSTEM)
        self._rounds = rounds
        self._readers = [f"reader-{number}" for number in range(readers)]
        self._chance = chance
        self._upgrade = upgrade
        self._home = Path(os.environ["CLUSTER_HOME"])
        self._nodes = sorted(path.name for path in self._home.glob("node-[0-9]*") if path.is_dir())
        self._events: dict[str, Callable[[str], None]] = {
            "server pod deleted by force": lambda node: self._delete_server(node, force=True),
            "server pod deleted": lambda node: self._delete_server(node, force=False),
            "server container killed": self._kill_container,
            "server process killed": lambda node: self._kill(node, "penstock.daemon.serve"),
            "node plugin deleted by force": lambda node: self._delete_plugin(node, force=True),
            "node plugin deleted": lambda node: self._delete_plugin(node, force=False),
            "operator deleted by force": self._delete_operator,
            "kubelet restarted": self._restart_kubelet,
            "containerd restarted": self._restart_containerd,
        }

    def run(self) -> Outcome:
        self._prepare()
        began = time.monotonic()
        done: Counter[str] = Counter()
        self._began: list[tuple[float, str]] = []
        order = [name for _ in range(self._rounds) for name in self._events]
        order = order[: self._rounds]
        self._chance.shuffle(order)
        for number, name in enumerate(order):
            node = self._chance.choice(self._nodes)
            self._began.append((time.time(), name))
            self._events[name](node)
            done[name] += 1
            self._wait_until_recovered()
            print(f"{number + 1:3} {name} on {node}", file=sys.stderr, flush=True)
            if self._upgrade and number == len(order) // 2:
                self._began.append((time.time(), "helm upgrade"))
                self._helm_upgrade()
                done["helm upgrade"] += 1
                self._wait_until_recovered()
                print("    helm upgrade", file=sys.stderr, flush=True)
        return self._outcome(done, time.monotonic() - began)

    # -- readers ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        scope: Json = {}
        exec(_CONTENT, scope)
        bucket = self._s3.bucket(_BUCKET)
        for count, size, prefix in ((_FILES, _FILE_BYTES, "f"), (_LARGE, _LARGE_BYTES, "large")):
            for number in range(count):
                name = f"{prefix}{number}"
                (bucket / name).write_bytes(scope["content"](name, size))
        self._kube.apply(
            keys_secret(), dataset("data", bucket_mount(self._s3, _BUCKET)),
            runtime("data", tieredstore={"levels": [
                {"mediumtype": "SSD", "path": "/var/lib/penstock/cache", "quota": "1Gi"}
            ]}),
        )  # fmt: skip
        self._kube.wait_for_phase("dataset", "data", "Bound")
        for number, name in enumerate(self._readers):
            self._kube.apply(_reader(name, self._nodes[number % len(self._nodes)]))
        for name in self._readers:
            self._kube.wait_for(
                lambda name=name: "reading" in self._kube.attempt("logs", name).stdout,
                f"{name} does not read", timeout_s=120,
            )  # fmt: skip

    def _outcome(self, events: Counter[str], seconds: float) -> Outcome:
        outcome = Outcome(events, seconds, 0, 0, [], [], 0.0, dict.fromkeys(sorted(events), 0.0))
        for name in self._readers:
            self._kube.wait_for(lambda name=name: self._end_reader(name), f"{name} gets no signal")
        for name in self._readers:
            text = self._kube.wait_for(
                lambda name=name: (
                    (lines := self._kube("logs", name).splitlines())[-1:] != ["reading"]
                    and lines[-1]
                ),
                f"{name} does not end",
            )
            seen = json.loads(text)
            outcome.reads += seen["reads"]
            outcome.read_bytes += seen["bytes"]
            outcome.errors += [f"{name}: {one}" for one in seen["errors"]]
            outcome.wrong += seen["wrong"]
            outcome.longest_s = max(outcome.longest_s, seen["longest_s"])
            for ended_s, took_s in seen["slow"]:
                before = [event for began_s, event in self._began if began_s < ended_s]
                if before:
                    longest = outcome.longest_by_event
                    longest[before[-1]] = max(longest[before[-1]], took_s)
        return outcome

    def _end_reader(self, name: str) -> bool:
        """Have a reader end; a kubelet that was restarted may not know its pod yet."""
        phase = self._kube.get("pod", name)["status"]["phase"]
        if phase == "Running":
            program = "import os; os.kill(1, 15)"
            self._kube.attempt("exec", name, "--", "python3", "-c", program)
        return phase == "Succeeded"

    def _wait_until_recovered(self) -> None:
        def recovered() -> bool:
            servers = self._pods(self._kube, "penstock.dev/server")
            plugins = self._pods(self._system, "app.kubernetes.io/component=node")
            wanted = len(self._nodes)
            return all(
                len(pods) == wanted and all(map(_is_ready, pods)) for pods in (servers, plugins)
            )

        self._kube.wait_for(recovered, "the pods are not Ready again", timeout_s=_RECOVERS_WITHIN_S)
        time.sleep(_CALM_S)

    # -- events ----------------------------------------------------------------------------------

    def _pods(self, kube: Kube, selector: str) -> list[Json]:
        return list(kube.list("pods", f"--selector={selector}"))

    def _delete(self, kube: Kube, selector: str, node: str | None, *, force: bool) -> None:
        for pod in self._pods(kube, selector):
            if node in (None, pod["spec"].get("nodeName")):
                words = ["--force", "--grace-period=0"] if force else ["--wait=false"]
                kube.attempt("delete", "pod", pod["metadata"]["name"], *words)
                uid = pod["metadata"]["uid"]
                kube.wait_for(
                    lambda uid=uid: uid not in {
                        one["metadata"]["uid"] for one in self._pods(kube, selector)
                    },
                    "a deleted pod is still there", timeout_s=_RECOVERS_WITHIN_S,
                )  # fmt: skip

    def _delete_server(self, node: str, *, force: bool) -> None:
        self._delete(self._kube, "penstock.dev/server", node, force=force)

    def _delete_plugin(self, node: str, *, force: bool) -> None:
        self._delete(self._system, "app.kubernetes.io/component=node", node, force=force)

    def _delete_operator(self, node: str) -> None:
        del node
        self._delete(self._system, "app.kubernetes.io/component=operator", None, force=True)

    def _kill_container(self, node: str) -> None:
        """Kill a container; wait until the kubelet has noticed: only then is Ready true again."""

        def restarts() -> int:
            pods = self._pods(self._kube, "penstock.dev/server")
            here = [pod for pod in pods if pod["spec"]["nodeName"] == node]
            statuses = [one for pod in here for one in pod["status"]["containerStatuses"]]
            return sum(one["restartCount"] for one in statuses)

        before = restarts()
        self._kill(node, "penstock.kubernetes.pod.main")
        self._kube.wait_for(
            lambda: restarts() > before,
            "a container that was killed is not restarted",
            timeout_s=_RECOVERS_WITHIN_S,
        )

    def _kill(self, node: str, module: str) -> None:
        """Kill the processes of this module in the server pods of a node."""
        pods = {
            pod["metadata"]["uid"]
            for pod in self._pods(self._kube, "penstock.dev/server")
            if pod["spec"]["nodeName"] == node
        }
        found = [pid for pid in _processes(module) if _pod_of(pid) & pods]
        assert found, f"no {module} on {node}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def _restart_kubelet(self, node: str) -> None:
        kubelet, containerd = wait_until(lambda: self._daemons(node), "the daemons do not run")
        _restart(kubelet, beside=containerd)
        wait_until(lambda: self._daemons(node), "the kubelet does not run")

    def _restart_containerd(self, node: str) -> None:
        kubelet, containerd = wait_until(lambda: self._daemons(node), "the daemons do not run")
        before = f"-t {_number_inside(containerd)} "
        _restart(containerd, beside=kubelet)
        _, fresh = wait_until(lambda: self._daemons(node), "containerd does not run")
        # The node's `enter` names the process whose namespace it enters.
        script = self._home / node / "enter"
        text = script.read_text()
        assert before in text, text
        script.write_text(text.replace(before, f"-t {_number_inside(fresh)} "))
        wait_until(lambda: _is_answered(node), "containerd does not answer")

    def _daemons(self, node: str) -> tuple[int, int] | None:
        """Return the kubelet and the containerd of a node; they may just be starting."""
        named = (
            _processes_named("kubelet", f"--kubeconfig={self._home}/{node}.conf"),
            _processes_named("containerd", f"{self._home}/{node}/containerd.toml"),
        )
        return None if not all(named) else (named[0][0], named[1][0])

    def _helm_upgrade(self) -> None:
        """Replace the operator, the node plugins and the server pods, by an image of another name
        with the same bytes."""
        name = image_name()
        repository, tag = name.rsplit(":", 1)
        for node in self._nodes:
            on_node(node, "ctr", "-n", "k8s.io", "images", "tag", "--force", name, f"{name}-next")
        before = {pod["metadata"]["uid"] for pod in self._pods(self._kube, "penstock.dev/server")}
        subprocess.run(
            ["helm", "upgrade", RELEASE, CHART, f"--namespace={SYSTEM}", "--wait", "--timeout=180s",
             f"--set=image.repository={repository},image.tag={tag}-next"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

        def replaced() -> bool:
            pods = self._pods(self._kube, "penstock.dev/server")
            return not before & {pod["metadata"]["uid"] for pod in pods}

        self._kube.wait_for(replaced, "the server pods are not replaced", timeout_s=120)


def _reader(name: str, node: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "main",
                    "image": image_name(),
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-c", _READER],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = {one["type"]: one["status"] for one in conditions}.get("Ready") == "True"
    return ready and "deletionTimestamp" not in pod["metadata"]


# -- processes of the cluster, which share this process namespace ---------------------------------


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _all_processes() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]


def _processes(module: str) -> list[int]:
    return [pid for pid in _all_processes() if module in _command_of(pid)]


def _processes_named(program: str, argument: str) -> list[int]:
    found: list[int] = []
    for pid in filter(runs, _all_processes()):
        command = _command_of(pid)
        if command and Path(command[0]).name == program and argument in " ".join(command[1:]):
            found.append(pid)
    return found


def _pod_of(pid: int) -> set[str]:
    """The pods whose volumes a process sees: its own."""
    try:
        table = Path(f"/proc/{pid}/mountinfo").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {
        line.split("/pods/")[1].split("/")[0] for line in table.splitlines() if "/pods/" in line
    }


def _number_inside(pid: int) -> int:
    """Return a process's number in its own process namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("NSpid:")[1].splitlines()[0].split()[-1])


def _restart(pid: int, *, beside: int) -> None:
    """Kill a daemon of a node and start it again as it was, in the namespaces of another one."""
    command = _command_of(pid)
    words = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    environment = dict(word.split("=", 1) for word in words)
    with open(f"/proc/{pid}/fd/1", "ab") as log:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not runs(pid), "the daemon does not die")
        subprocess.Popen(
            ["nsenter", "-t", str(beside), "-m", "-n", "-p", "--", *command],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _is_answered(node: str) -> bool:
    program = str(Path(os.environ["CLUSTER_HOME"]) / node / "enter")
    return subprocess.run([program, "ctr", "version"], capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    print(f"seed {args.seed}", file=sys.stderr)
    s3 = S3(os.environ["CLUSTER_S3"])
    outcome = survive(s3, rounds=args.rounds, readers=args.readers, seed=args.seed, upgrade=True)
    print(outcome.describe())
    for problem in [*outcome.errors, *outcome.wrong][:20]:
        print(problem)
    return 1 if outcome.errors or outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
