"""Experiments as a run starts them."""

import itertools
import json
from pathlib import Path

import pytest

from penstock.bench.experiments.datasets import make_dataset
from penstock.bench.plans.model import DatasetPlan
from penstock.bench.s3server import S3Server, create_bucket, upload
from tests.support.experiments import FILES, Bench, BenchMaker

_numbers = itertools.count()


@pytest.fixture
def bench_of(on_disk: Path, medium: Path, server: S3Server) -> BenchMaker:
    """bench_of(plan) makes a data set and puts it into a bucket of its own."""

    def make(plan: DatasetPlan) -> Bench:
        bench = Bench(server, f"bench-experiment-{next(_numbers)}", on_disk, medium)
        manifest = make_dataset(plan, bench.root)
        (on_disk / "dataset.json").write_text(json.dumps(manifest.to_json()))
        create_bucket(server, bench.bucket)
        upload(server, bench.bucket, bench.root)
        return bench

    return make


@pytest.fixture
def bench(bench_of: BenchMaker) -> Bench:
    return bench_of(DatasetPlan("small", files=FILES))
