"""penstock operator: the controller of Datasets and runtimes on a Kubernetes cluster."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--image", required=True, metavar="NAME", help="Image of server pods: Penstock's own."
)
@click.option(
    "--image-pull-policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    help="When nodes pull it; by default the cluster's rule.",
)
@click.option(
    "--image-pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Secret to pull it with, in each data set's namespace; repeatable.",
)
@click.option("--priority-class", default="", metavar="NAME", help="Of server pods.")
@click.option(
    "--namespace", metavar="NAME", help="Where the lease is; by default the operator's own."
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of the cluster; by default $KUBECONFIG or the pod's service account.",
)
@click.option(
    "--idle",
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long a server stays on a node after the last pod that used it.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Work only while this process holds the lease.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    metavar="PORT",
    help="Where /healthz and /metrics are; 0: nowhere.",
)
def operator(
    image: str,
    image_pull_policy: str | None,
    pull_secrets: tuple[str, ...],
    priority_class: str,
    namespace: str | None,
    kubeconfig: Path | None,
    idle: str,
    leader_elect: bool,
    http_port: int,
) -> int:
    """Make volumes and server pods from the Datasets of a cluster, until SIGTERM.

    The chart starts it; by hand it works on any cluster that has the CRDs.

    \b
    Example:
      penstock operator --image penstock:0.2 --kubeconfig ~/.kube/config
    """
    from penstock.api import cluster

    return cluster.operate(
        image,
        pull_policy=image_pull_policy or "",
        pull_secrets=pull_secrets,
        priority_class=priority_class,
        namespace=namespace,
        kubeconfig=kubeconfig,
        idle=idle,
        leader_elect=leader_elect,
        http_port=http_port or None,
    )
