"""The server of a pod: what the container of a data set's DaemonSet runs."""

import os
import sys


def serve_pod() -> None:
    """Replace this process by the server's PID 1, which imports less than the command line."""
    os.execv(sys.executable, [sys.executable, "-Pm", "penstock.kubernetes.pod.main"])
