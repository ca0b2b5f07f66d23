"""The server of a pod: what the container of a data set's DaemonSet runs."""

import os
import sys


def serve_pod() -> None:
    """Replace this process by the server's own program, which is quicker to import."""
    os.execv(sys.executable, [sys.executable, "-Pm", "penstock.kubernetes.pod.main"])
