"""Build hook: generates the modules of gRPC messages from the .proto files.

Each way to install makes them: a wheel, `pip install .` and `pip install -e .`, which puts them
beside their .proto files. They are not committed: the generator's version must fit protobuf's.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTOS = Path("penstock/kubernetes/node/proto")


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root) / "src")


def generate(src: Path) -> None:
    """Write NAME_pb2.py and NAME_pb2.pyi beside each NAME.proto."""
    protos = sorted((src / PROTOS).glob("*.proto"))
    # Paths relative to src: they become the names by which generated modules import each other.
    names = [str(proto.relative_to(src)) for proto in protos]
    with tempfile.TemporaryDirectory(dir=src / PROTOS, prefix=".generated-") as folder:
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.",
             f"--python_out={folder}", f"--pyi_out={folder}", *names],
            cwd=src,
            check=True,
        )  # fmt: skip
        # Renamed into place: another process may import them meanwhile.
        for made in (Path(folder) / PROTOS).iterdir():
            made.replace(src / PROTOS / made.name)
