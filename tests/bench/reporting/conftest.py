"""A made-up run of every kind of arm, made once: reading it changes nothing in it."""

from pathlib import Path

import pytest

from penstock.bench.reporting.summary import Summary, summary_of
from tests.support.report_samples import FAR, NEAR, READ, RESNET, make_run


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reporting") / "full"
    return make_run(folder, workloads=(READ, RESNET), shapes=(NEAR, FAR), repeats=2)


@pytest.fixture(scope="session")
def full(full_run: Path) -> Summary:
    return summary_of(full_run)
