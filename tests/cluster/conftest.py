"""What tests in the cluster get: kubectl in a namespace of their own, the S3 server, the nodes.

They run inside `python -m tests.cluster`, which has started all of it.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.kube import Kube
from tests.support.s3 import S3

_HERE = Path(__file__).parent
_HOW = "runs in a cluster only: .venv/bin/python -m tests.cluster .venv/bin/pytest -m cluster"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    outside = "CLUSTER_HOME" not in os.environ
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(300))
            if outside:  # tests/conftest.py fails what is skipped in CI
                item.add_marker(pytest.mark.skip(reason=_HOW))


@pytest.fixture
def kube() -> Iterator[Kube]:
    """kubectl in a namespace of the test's own, which is removed at its end."""
    with _new_namespace() as kube:
        yield kube


@pytest.fixture
def other_kube() -> Iterator[Kube]:
    """kubectl in a second namespace."""
    with _new_namespace() as kube:
        yield kube


@contextmanager
def _new_namespace() -> Iterator[Kube]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube = Kube(name)
    kube("create", "namespace", name)
    kube.wait_for(lambda: kube.find("serviceaccount", "default"), "no service account")
    try:
        yield kube
    finally:
        kube("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def cluster_s3() -> S3:
    """The S3 server that pods and this process reach by the same address."""
    return S3(os.environ["CLUSTER_S3"])


@pytest.fixture(scope="session")
def nodes() -> list[str]:
    home = Path(os.environ["CLUSTER_HOME"])
    return sorted(path.name for path in home.glob("node-[0-9]*") if path.is_dir())
