"""What result.json says of an experiment itself: its arm, its workload, where figures are from.

Pure, but for the time of day.
"""

import time
from typing import Any

from penstock.bench.accelerator import Accelerator
from penstock.bench.experiments.datasets import DatasetManifest
from penstock.bench.experiments.models import published
from penstock.bench.experiments.systems import title_of
from penstock.bench.plans.model import ExperimentConfig, WorkloadPlan


def head_of(config: ExperimentConfig) -> dict[str, Any]:
    """All of result.json that is known before anything runs, but for the workload."""
    experiment = config.experiment
    arm, shape = experiment.arm, experiment.shape
    return {
        "id": experiment.id,
        "run": config.run,
        "arm": {
            "name": arm.name,
            "title": title_of(arm),
            "system": arm.system,
            "version": "",
            "state": arm.state,
            "cache_share": arm.cache_share,
            "hinted": arm.state == "planned",
            "command": "",
            "options": [f"{name}={value}" for name, value in arm.options.items()],
        },
        "workload": {"name": experiment.workload.name, "kind": experiment.workload.kind},
        "shape": {
            "name": shape.name,
            "latency_s": shape.latency_s,
            "bytes_per_s": shape.bytes_per_s,
        },
        "repeat": experiment.repeat,
        "order": experiment.order,
        "seed": experiment.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def workload_head(workload: WorkloadPlan, manifest: DatasetManifest) -> dict[str, Any]:
    """What result.json says of the workload. Emulated ones are labelled so, with their source."""
    head: dict[str, Any] = {
        "name": workload.name,
        "kind": workload.kind,
        "model": workload.model,
        "accelerator": workload.accelerator,
        "accelerators": workload.accelerators[0],
        "emulated": workload.kind == "emulated",
        "batch": None,
        "step_s": None,
        "samples_per_s_wanted": None,
        "scale": workload.scale,
        "readers": workload.readers,
        "sample_bytes": manifest.size_bytes / manifest.samples,
    }
    if workload.kind == "emulated":
        row, accelerator = published(workload.model, workload.accelerator), accelerator_of(workload)
        head |= {
            "batch": accelerator.batch,
            "step_s": accelerator.step_s,
            "samples_per_s_wanted": accelerator.samples_per_s,
            "readers": row.read_threads,
            "published": {
                "batch": row.batch,
                "step_s": row.step_s,
                "sample_bytes": row.sample_bytes,
                "least_busy": row.least_busy,
                "source": f"mlcommons/storage, {row.source}",
            },
        }
    return head


def accelerator_of(workload: WorkloadPlan) -> Accelerator:
    """What is emulated: the published one, scaled."""
    return published(workload.model, workload.accelerator).scaled(workload.scale)
