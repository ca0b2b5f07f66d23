"""Penstock on a Kubernetes cluster: the operator's process."""

from collections.abc import Sequence
from pathlib import Path

from penstock.store.redaction import set_up_logging
from penstock.units import parse_duration


def operate(
    image: str,
    *,
    pull_policy: str = "",
    pull_secrets: Sequence[str] = (),
    priority_class: str = "",
    namespace: str | None = None,
    kubeconfig: Path | None = None,
    idle: str = "5m",
    leader_elect: bool = True,
    http_port: int | None = None,
) -> int:
    """Reconcile the Datasets of a cluster until SIGTERM; return the exit code.

    `image` is that of server pods, `idle` how long they stay after the last pod that used them.
    """
    from penstock.kubernetes.operator.main import Options, run
    from penstock.kubernetes.server_set import Image

    set_up_logging(level="INFO")
    return run(
        Options(
            image=Image(image, pull_policy, tuple(pull_secrets), priority_class),
            namespace=namespace,
            kubeconfig=kubeconfig,
            idle_s=parse_duration(idle, what="--idle"),
            leader_elect=leader_elect,
            http_port=http_port,
        )
    )
