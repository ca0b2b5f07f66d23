"""How top's figures are printed."""

from typing import Any

from penstock.cli.top_view import instance_lines, job_lines, node_lines

GIB = 1 << 30


def gpu(index: int, duty: int | None, used: int | None = None) -> dict[str, Any]:
    total = None if used is None else 80 * GIB
    return {"index": index, "dutyCycle": duty, "memoryUsedBytes": used, "memoryBytes": total}


def used(cores: float | None, gpus: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"cores": cores, "memoryBytes": 3 * GIB, "processes": 5}
    if cores is None:
        figures = dict.fromkeys(figures)
    return {
        **figures, "gpus": gpus, "name": "resnet", "namespace": "default", "status": "RUNNING",
        "trainer": "PYTORCHJOB", "node": "box", "gpusRequested": 2, "gpusAllocated": len(gpus),
        **fields,
    }  # fmt: skip


RUNS = used(1.234, [gpu(0, 90, 10 * GIB), gpu(1, 70, 20 * GIB)])
WAITS = used(None, [], name="next", namespace="team", status="QUEUING", node=None)


def test_jobs_are_shown_with_what_all_their_processes_and_gpus_do() -> None:
    lines = job_lines([RUNS, WAITS], namespaces=True)
    assert [line.split() for line in lines[1:3]] == [
        ["default", "resnet", "RUNNING", "PYTORCHJOB", "1.2", "3.0", "GiB", "5", "2", "2", "80%",
         "30.0", "GiB/160.0", "GiB", "box"],
        ["team", "next", "QUEUING", "PYTORCHJOB", "N/A", "N/A", "N/A", "2", "0", "N/A", "N/A",
         "N/A"],
    ]  # fmt: skip
    assert lines[-1] == "Allocated/Requested GPUs of these jobs: 2/4"


def test_of_one_job_each_instance_is_shown() -> None:
    one = used(1.0, [gpu(3, None)], name="resnet-master-0", gpusRequested=1)
    lines = instance_lines({**RUNS, "instances": [one]})
    assert lines[1].startswith("resnet ")
    assert lines[-1].split() == [
        "resnet-master-0", "RUNNING", "1.0", "3.0", "GiB", "5", "1", "3", "N/A", "N/A",
    ]  # fmt: skip


def test_a_machine_is_shown_with_its_gpus_jobs_and_data_sets() -> None:
    words = {"namespace": "default", "name": "imagenet", "phase": "Bound", "cached": "1GiB",
             "cacheCapacity": "2GiB", "cachedPercentage": "50.0%"}  # fmt: skip
    machine: dict[str, Any] = {
        "name": "box", "cores": 8, "coresUsed": 2.04, "memoryBytes": 8 * GIB,
        "memoryUsedBytes": 2 * GIB,
        "gpus": [{"name": "H200", "job": "resnet", **gpu(0, 90, GIB)},
                 {"name": "H200", "job": None, **gpu(1, 0, 0)}],
        "jobs": [RUNS], "datasets": [words],
    }  # fmt: skip
    lines = node_lines(machine)
    assert lines[1].split() == ["box", "2.0/8", "2.0", "GiB/8.0", "GiB", "(25%)", "2", "1"]
    assert [line for line in lines if line.endswith(":")] == ["GPUs:", "Jobs:", "Data sets:"]
    assert [line.split()[-1] for line in lines[5:7]] == ["resnet", "<none>"]
    bare = node_lines({**machine, "gpus": [], "jobs": [], "datasets": []})
    assert len(bare) == 2
