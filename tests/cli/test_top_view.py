"""What `penstock top` makes of its figures: sums over GPUs, and what is not known."""

from typing import Any

from penstock.cli.top_view import job_lines, node_lines

GIB = 1 << 30


def gpu(index: int, duty: int, used: int) -> dict[str, Any]:
    return {"index": index, "dutyCycle": duty, "memoryUsedBytes": used, "memoryBytes": 80 * GIB}


def used(cores: float | None, gpus: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    known = cores is not None
    return {
        "cores": cores, "memoryBytes": 3 * GIB if known else None,
        "processes": 5 if known else None, "gpus": gpus, "name": "resnet", "namespace": "default",
        "status": "RUNNING", "trainer": "PYTORCHJOB", "node": "box", "gpusRequested": 2,
        "gpusAllocated": len(gpus), **fields,
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


def test_a_machine_without_gpus_jobs_and_data_sets_is_one_row() -> None:
    machine: dict[str, Any] = {
        "name": "box", "cores": 8, "coresUsed": 2.04, "memoryBytes": 8 * GIB,
        "memoryUsedBytes": 2 * GIB, "gpus": [], "jobs": [], "datasets": [],
    }  # fmt: skip
    _, row = node_lines(machine)
    assert row.split()[:6] == ["box", "2.0/8", "2.0", "GiB/8.0", "GiB", "(25%)"]
