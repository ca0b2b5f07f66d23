"""The image: it runs without any privilege and on a read-only root file system, and is small."""

import tarfile

import pytest

from tests.cluster.kit import ROOT
from tests.cluster.kube import Kube, image_name

pytestmark = pytest.mark.cluster


def confined_pod(name: str, script: str) -> dict:
    """A pod as Pod Security "restricted" wants it, that runs Python code in Penstock's image."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": image_name(),
                    "command": ["python3", "-c", script],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def test_the_program_runs_as_an_ordinary_user_on_a_read_only_root(kube: Kube) -> None:
    script = """
import os, subprocess, sys
print(os.getuid(), os.getgid())
try:
    open('/opt/penstock/x', 'w')
except OSError as error:
    print(type(error).__name__, error.errno)
sys.stdout.flush()
subprocess.run(['penstock', '--version'], check=True)
for role in 'operator', 'node', 'server':
    subprocess.run(['penstock', role, '--help'], check=True, stdout=subprocess.DEVNULL)
"""
    version = image_name().rpartition(":")[2]
    assert kube.run_pod(confined_pod("confined", script)).splitlines() == [
        "65532 65532",
        "OSError 30",
        f"penstock {version}",
    ]


def test_the_image_has_all_that_the_roles_import(kube: Kube) -> None:
    script = """
import importlib, pkgutil, penstock.kubernetes as package
for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
    importlib.import_module(found.name)
    print(found.name)
import botocore.session
botocore.session.get_session().create_client('sts', region_name='us-east-1')
"""
    assert "penstock.kubernetes.node.main" in kube.run_pod(confined_pod("imports", script)).split()


def test_modules_are_compiled_so_that_pods_start_fast(kube: Kube) -> None:
    script = """
import importlib.util, pathlib, penstock
folder = pathlib.Path(penstock.__file__).parent
for path in [*folder.rglob('*.py'), *(folder.parent / 'pydantic').rglob('*.py')]:
    compiled = pathlib.Path(importlib.util.cache_from_source(str(path)))
    flags = int.from_bytes(compiled.read_bytes()[4:8], 'little')
    assert flags == 1, (path, flags)  # PEP 552: by hash, unchecked
"""
    kube.run_pod(confined_pod("compiled", script))


def test_no_program_in_it_gives_more_rights(kube: Kube) -> None:
    script = """
import os, stat
for folder, _, names in os.walk('/'):
    if folder.startswith(('/proc', '/sys')):
        continue
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            print(folder, name)
"""
    assert kube.run_pod(confined_pod("modes", script)) == ""


def test_the_archive_names_the_image_and_is_small() -> None:
    archive = ROOT / "build" / "penstock-image.tar"
    with tarfile.open(archive) as members:
        assert image_name().encode() in members.extractfile("manifest.json").read()
    assert archive.stat().st_size < 250e6
