"""What the cluster's tests need in it: Penstock's image on each node, an S3 server, Penstock.

Runs in the network of the cluster; `python -m tests.cluster` starts it.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.bench.s3server import remove_sockets, seaweedfs
from penstock.kubernetes.names import DRIVER
from tests.cluster.helm import CHART, RELEASE
from tests.cluster.kit import ROOT, run_to_its_end
from tests.cluster.kube import SYSTEM, Kube
from tests.support.processes import running
from tests.support.s3 import ACCESS_KEY, KEYS, SECRET_KEY

GATEWAY = "10.244.0.1"  # this machine, for pods
IMAGE = ROOT / "build" / "penstock-image.tar"
_INSTALL_S = 180


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.inside")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--image-only", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    home = Path(os.environ["CLUSTER_HOME"])
    with serving_s3(home / "s3") as endpoint:
        if not args.bare:
            import_images(home, args.nodes)
        if not args.bare and not args.image_only:
            install(args.nodes)
        environment = {**os.environ, "CLUSTER_S3": endpoint, "AWS_ENDPOINT_URL": endpoint, **KEYS}
        return run_to_its_end(args.command, environment)


@contextmanager
def serving_s3(folder: Path) -> Iterator[str]:
    """An S3 server that pods reach, until the context ends."""
    server = seaweedfs(folder, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    everywhere = [word.replace("-ip.bind=127.0.0.1", "-ip.bind=0.0.0.0") for word in server.command]
    # Its sockets are left in /tmp, but no process.
    server = replace(server, command=("setpriv", "--pdeathsig", "KILL", *everywhere))
    log = folder.with_suffix(".log")
    try:
        with running(server.command, ready=server.is_ready, env=server.environment, log=log):
            yield f"http://{GATEWAY}:{server.ports['s3']}"
    finally:
        remove_sockets(folder)


def import_images(home: Path, nodes: int) -> None:
    """Load Penstock's image into each node's containerd."""
    began = time.monotonic()

    def load(number: int) -> None:
        enter = home / f"node-{number + 1}" / "enter"
        ctr = ("ctr", "-n", "k8s.io", "images", "import", IMAGE)
        subprocess.run([enter, *ctr], check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor() as pool:
        list(pool.map(load, range(nodes)))
    print(f"the image is on each node ({time.monotonic() - began:.1f} s)", file=sys.stderr)


def install(nodes: int) -> None:
    """Install the chart; wait until each kubelet knows the driver."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *("helm", "install", RELEASE, CHART, f"--namespace={SYSTEM}", "--create-namespace"),
            *("--wait", f"--timeout={_INSTALL_S}s"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"Penstock was not installed: {done.stderr}\n{Kube(SYSTEM).describe()}")
    kube = Kube(SYSTEM)
    registered = "jsonpath={.items[*].spec.drivers[*].name}"
    kube.wait_for(
        lambda: kube("get", "csinodes", f"--output={registered}").split() == [DRIVER] * nodes,
        "the node plugin is not registered",
        timeout_s=_INSTALL_S,
    )
    print(f"Penstock installed ({time.monotonic() - began:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
