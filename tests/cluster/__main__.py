"""Runs a command in a new cluster with Penstock installed: python -m tests.cluster COMMAND...

The command is in the network of the cluster and has in its environment

    KUBECONFIG      for kubectl and helm, which are in PATH
    CLUSTER_HOME    the cluster's folder: `enter` runs a command in all of the cluster's namespaces,
                    `node-1/enter` one on that node; logs/
    CLUSTER_S3      an S3 server that pods reach, too; AWS_* are set for it

When the command ends, so does the cluster. Needs root.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from tests.cluster.helm import find_helm
from tests.cluster.kit import ROOT, KitError, find_kit, run_to_its_end, running_cluster


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--fake", type=int, default=0, help="nodes on which pods only seem to run")
    parser.add_argument("--bare", action="store_true", help="without Penstock")
    parser.add_argument(
        "--image-only",
        action="store_true",
        help="with Penstock's image, not installed",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("which command?")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run(args)
    except KitError as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> int:
    kit, helm = find_kit(), find_helm()
    if not args.bare:
        build = [sys.executable, ROOT / "tools" / "build-image"]
        subprocess.run(build, check=True, stdout=sys.stderr)
    began = time.monotonic()
    with running_cluster(kit, nodes=args.nodes, fake_nodes=args.fake) as cluster:
        print(f"{args.nodes} nodes are Ready ({time.monotonic() - began:.1f} s)", file=sys.stderr)
        environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "CLUSTER_HOME": str(cluster.home),
            "PATH": f"{kit.assets}:{helm.parent}:{os.environ['PATH']}",
        }
        inside = [sys.executable, "-m", "tests.cluster.inside", f"--nodes={args.nodes}"]
        inside += ["--bare"] if args.bare else ["--image-only"] if args.image_only else []
        network = ["nsenter", "--target", str(cluster.network_pid), "--net"]
        return run_to_its_end([*network, *inside, *args.command], environment)


if __name__ == "__main__":
    sys.exit(main())
