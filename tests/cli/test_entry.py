"""The program's first moments."""

import signal
import subprocess
import sys

INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.argv = ["penstock", "--version"]
from penstock.__main__ import main
main()
"""


def test_ctrl_c_before_it_has_begun_ends_it_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
