"""kubectl for tests, and the one way to wait for something in the cluster.

What fails says how the cluster was at that time: objects, events, pods, logs.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import yaml

from tests.cluster.kit import ROOT
from tests.support.waiting import wait_until

T = TypeVar("T")
Json = dict[str, Any]
SYSTEM = "penstock-system"
_LOG_LINES = 60
_KINDS = "datasets,pods,daemonsets,persistentvolumeclaims"


class KubectlError(AssertionError):
    pass


class Kube:
    """The cluster of $KUBECONFIG, as its administrator, in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output; what it rejects is an AssertionError."""
        done = self.attempt(*words, stdin=stdin)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}")
        return done.stdout

    def attempt(self, *words: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = ["kubectl", f"--namespace={self.namespace}", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90)

    def apply(self, *manifests: str | Mapping[str, Any]) -> str:
        """`kubectl apply` of YAML texts and of objects."""
        texts = [one if isinstance(one, str) else yaml.safe_dump(dict(one)) for one in manifests]
        return self("apply", "-f", "-", stdin="\n---\n".join(texts))

    def find(self, kind: str, name: str) -> Json | None:
        output = self("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(output) if output.strip() else None

    def get(self, kind: str, name: str) -> Json:
        return json.loads(self("get", kind, name, "--output=json"))

    def list(self, kind: str, *words: str) -> Sequence[Json]:
        return json.loads(self("get", kind, "--output=json", *words))["items"]

    def wait_for(
        self,
        condition: Callable[[], T],
        what: str,
        *,
        timeout_s: float = 60.0,
        pause_s: float = 0.2,
    ) -> T:
        """Return the first true value of `condition`; fail with what the cluster looked like."""
        return wait_until(
            condition,
            lambda: f"{what}\n{self.describe()}",
            timeout_s=timeout_s,
            pause_s=pause_s,
        )

    def wait_for_phase(self, kind: str, name: str, phase: str, *, timeout_s: float = 60.0) -> Json:
        """Wait for .status.phase of an object, and return the object."""

        def reached() -> Json | None:
            found = self.find(kind, name)
            actual = (found or {}).get("status", {}).get("phase")
            return found if actual == phase else None

        return self.wait_for(reached, f"{kind} {name} is not {phase}", timeout_s=timeout_s)

    def run_pod(self, manifest: Mapping[str, Any] | str, *, timeout_s: float = 90.0) -> str:
        """Run a pod to its end and return its log; a pod that fails is an AssertionError."""
        self.apply(manifest)
        name = (yaml.safe_load(manifest) if isinstance(manifest, str) else manifest)["metadata"][
            "name"
        ]

        def ended() -> str:
            phase = self.get("pod", name).get("status", {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else ""

        phase = self.wait_for(ended, f"pod {name} does not end", timeout_s=timeout_s)
        log = self("logs", name)
        assert phase == "Succeeded", f"pod {name} failed:\n{log}\n{self.describe()}"
        return log

    def describe(self) -> str:
        """How the namespace and Penstock itself are: for a failed test."""
        parts = [
            self._tell("get", _KINDS, "--output=wide"),
            self._tell("describe", "datasets,pods"),
            self._tell("get", "events", "--sort-by=.lastTimestamp"),
        ]
        system = Kube(SYSTEM)
        parts += [
            system._tell("get", "pods", "--output=wide"),
            system._tell("get", "events", "--sort-by=.lastTimestamp"),
        ]
        for kube in (self, system):
            for pod in kube.attempt("get", "pods", "--output=name").stdout.split():
                last = f"--tail={_LOG_LINES}"
                parts.append(kube._tell("logs", pod, "--all-containers", "--prefix", last))
        return "\n".join(parts)

    def _tell(self, *words: str) -> str:
        done = self.attempt(*words)
        return f"$ kubectl -n {self.namespace} {' '.join(words)}\n{done.stdout}{done.stderr}"


def on_node(node: str, *command: str) -> str:
    """Run a command on a node, in its mount namespace; return its output."""
    program = os.path.join(os.environ["CLUSTER_HOME"], node, "enter")
    done = subprocess.run([program, *command], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"{node}: {' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout


def image_name() -> str:
    """The image that `tools/build-image` builds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"localhost/penstock:{project['version']}"
