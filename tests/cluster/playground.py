"""A cluster to play with, for `make cluster`: fills a bucket, says what to try, and waits."""

import os
import random
import signal
from pathlib import Path

from tests.cluster.kube import image_name
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

_BUCKET = "images"
_FILES = 500
_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "10-kubernetes"

_TEXT = """
A Kubernetes of two nodes runs on this machine, with Penstock in the namespace penstock-system, and
an S3 server with {files} files in the bucket {bucket}. In another terminal, as root:

    alias kubectl="{enter} {kubectl}"
    kubectl get pods -A
    kubectl apply -f {folder}
    kubectl get datasets --watch
    kubectl logs --follow pod/trainer
    kubectl delete -f {folder}

Endpoint {endpoint}, key {access_key}, secret {secret_key}.
Images are not pulled: pods have localhost/busybox:1 and Penstock's own with Python.
A command on a node: {home}/node-1/enter COMMAND
Ctrl-C ends it; nothing stays.
"""


def main() -> None:
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    home, endpoint = Path(os.environ["CLUSTER_HOME"]), os.environ["CLUSTER_S3"]
    bucket = S3(endpoint).bucket(_BUCKET)
    source = random.Random(0)
    for number in range(_FILES):
        content = source.randbytes(source.randrange(50_000, 150_000))
        (bucket / f"train/n{number % 10:04}/{number}.jpeg").write_bytes(content)
    folder = home / "example"
    folder.mkdir()
    for path in _EXAMPLE.glob("*.yaml"):
        (folder / path.name).write_text(fill_in(path.read_text(), endpoint, _BUCKET))
    kubectl = next(
        found
        for found in (Path(name, "kubectl") for name in os.environ["PATH"].split(":"))
        if found.exists()
    )
    print(
        _TEXT.format(
            files=_FILES,
            bucket=_BUCKET,
            enter=home / "enter",
            kubectl=kubectl,
            folder=folder,
            endpoint=endpoint,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            home=home,
        ),
        flush=True,
    )
    signal.sigwait(ends)


def fill_in(manifest: str, endpoint: str, bucket: str) -> str:
    """Return an example's manifest with the placeholders for a bucket filled in."""
    values = {
        "<IMAGE>": image_name(),
        "<ENDPOINT>": endpoint,
        "<BUCKET>": bucket,
        "<ACCESS_KEY_ID>": ACCESS_KEY,
        "<SECRET_KEY>": SECRET_KEY,
    }
    for placeholder, value in values.items():
        manifest = manifest.replace(placeholder, value)
    return manifest


if __name__ == "__main__":
    main()
