"""What is shown of jobs: which instance speaks for one, the last lines of a log, what it uses."""

import io
from pathlib import Path
from typing import Any

import pytest

from penstock.api.jobs import TrainingJob, chief_of
from penstock.cli.jobs import details
from penstock.cli.logs import follow, start_of_last
from penstock.cli.top import job_lines
from penstock.jobs.job_folder import job_folder, waits_folder
from penstock.jobs.loader_waits import WaitRecord, read_waits


def test_one_instance_represents_a_job() -> None:
    ps, worker, master, launcher = (
        {"name": f"resnet-{role}", "role": role} for role in ("ps", "worker", "master", "launcher")
    )
    assert chief_of([ps, worker]) == "resnet-worker"
    assert chief_of([worker, master]) == "resnet-master"
    assert chief_of([ps, launcher, worker]) == "resnet-launcher"
    assert chief_of([]) is None


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\nb", b"a\n\nb\n", b"x\n" * 70_000])
@pytest.mark.parametrize("lines", [0, 1, 2, 80_000])
def test_the_last_lines_are_counted_as_a_person_would(text: bytes, lines: int) -> None:
    start = start_of_last(io.BytesIO(text), lines)
    whole = text.splitlines(keepends=True)
    assert text[start:] == b"".join(whole[max(0, len(whole) - lines) :])


def test_the_last_lines_of_a_large_log_are_read_from_its_end() -> None:
    read: list[int] = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            read.append(size or 0)
            return super().read(size)

    text = b"line\n" * 1_000_000
    assert text[start_of_last(Watched(text), 10) :] == b"line\n" * 10
    assert sum(read) < 100_000


def test_a_log_is_followed_until_the_job_ends_and_gaps_are_marked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    texts = [b"one\ntwo\nthree\n", b"one\n", b"one\nlast\n"]

    def has_ended() -> bool:
        log.write_bytes(texts.pop(0))
        return not texts

    output = b"".join(follow(log, 4, has_ended)).decode()
    cut = "\n--- the log was full and has been cut: some may be missing here ---\n"
    assert output == f"two\nthree\n{cut}last\n"


def test_a_job_says_how_long_it_waited_for_data(state: Path) -> None:
    metadata = {"name": "net", "namespace": "default", "uid": "u"}
    metadata["creationTimestamp"] = "2026-01-01T10:00:00Z"
    spec = {"trainer": "pytorch", "data": [{"dataset": "imagenet", "mountPath": "/data"}]}
    status = {"phase": "RUNNING", "dataReadyTime": "2026-01-01T10:01:30Z"}
    job = TrainingJob({"kind": "TrainingJob", "metadata": metadata, "spec": spec, "status": status})
    assert "Data wait:  90s until its data sets were ready" in details(job)
    folder = waits_folder(job_folder(state, "u"))
    folder.mkdir(parents=True)
    record = WaitRecord(folder)
    record.add(1_000_000_000, 6_000_000_000)
    record.add(41_000_000_000, 41_000_000_000)
    assert any(line.endswith("; 5s in its loops, 12.5% of their time") for line in details(job))
    # Without a data set it waited for none.
    del spec["data"]
    assert (job.data_wait_s, job.loader_waits) == (0.0, read_waits(folder))


GIB = 1 << 30


def test_jobs_are_shown_with_the_usage_of_all_their_processes_and_gpus() -> None:
    gpus = [
        {"index": index, "dutyCycle": duty, "memoryUsedBytes": used * GIB, "memoryBytes": 80 * GIB}
        for index, duty, used in ((0, 90, 10), (1, 70, 20))
    ]
    runs: dict[str, Any] = {
        "cores": 1.234,
        "memoryBytes": 3 * GIB,
        "processes": 5,
        "gpus": gpus,
        "name": "resnet",
        "namespace": "default",
        "status": "RUNNING",
        "trainer": "PYTORCHJOB",
        "node": "box",
        "gpusRequested": 2,
        "gpusAllocated": 2,
    }
    nothing = dict.fromkeys(("cores", "memoryBytes", "processes", "node"))
    lines = job_lines([runs, runs | nothing | {"gpus": [], "gpusAllocated": 0}], namespaces=True)
    assert [" ".join(line.split()) for line in lines[1:3]] == [
        "default resnet RUNNING PYTORCHJOB 1.2 3.0 GiB 5 2 2 80% 30.0 GiB/160.0 GiB box",
        "default resnet RUNNING PYTORCHJOB N/A N/A N/A 2 0 N/A N/A N/A",
    ]
    assert lines[-1] == "Allocated/Requested GPUs of these jobs: 2/4"
