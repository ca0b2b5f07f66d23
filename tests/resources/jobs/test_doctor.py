"""Jobs that were submitted, and what the doctor says of them."""

import tarfile
from pathlib import Path

import pytest

from penstock.errors import NoSuchResource
from penstock.resources.diagnosis.bundle import write_bundle
from penstock.resources.diagnosis.examination import Report, examine
from penstock.resources.diagnosis.finding import Finding
from tests.support.jobs import Jobs, kill
from tests.support.mounts import penstock

TOKEN = "token-of-a-job-0123456789"


def finding(report: Report, subject: str) -> Finding:
    assert subject in report.subjects
    (found,) = [one for one in report.findings if one.subject == subject]
    return found


def test_a_job_that_failed_and_one_that_waits_are_told_and_what_they_printed_is_in_the_bundle(
    jobs: Jobs, tmp_path: Path
) -> None:
    env = [{"name": "API_TOKEN", "value": TOKEN}]
    jobs.run("broken", "echo $API_TOKEN; echo the end; exit 3", env=env)
    told = penstock("doctor", "job/broken")
    assert told.returncode == 2
    assert "wrong job/broken: it failed: worker-0 ended with exit code 3" in told.stdout
    assert "do:  penstock logs broken --tail 50" in told.stdout
    jobs.submit("waits", "true", data=[{"dataset": "nowhere", "mountPath": "/penstock-data"}])
    jobs.wait("waits", lambda found: found.status.get("reason") == "DataNotReady")
    report = examine(None)
    waits = finding(report, "job/waits")
    assert (waits.severity, waits.why) == ("bad", "there is no data set nowhere")
    assert finding(report, "job/broken").severity == "note"
    write_bundle(report, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        texts = {
            one.name: file.read().decode() for one in archive.getmembers()
            if (file := archive.extractfile(one)) is not None
        }  # fmt: skip
    assert "the end" in texts["b/logs/jobs/default/broken-worker-0.log"]
    assert "kind: TrainingJob" in texts["b/resources.yaml"]
    assert [name for name, text in texts.items() if TOKEN in text] == []
    with pytest.raises(NoSuchResource, match="no TrainingJob 'none'"):
        examine("job/none")
    with pytest.raises(NoSuchResource) as refused:
        examine("broken")
    assert refused.value.hint == "there is a job of that name: penstock doctor job/broken"


def test_a_job_that_runs_is_well_and_one_that_lost_everybody_is_not(
    jobs: Jobs,
) -> None:
    jobs.submit("net", "sleep 1000")
    supervisor = jobs.supervisor("net")
    runs = finding(examine("trainingjob/net"), "job/net")
    assert (runs.severity, runs.what) == ("ok", "it runs")
    kill(jobs.loop())
    kill(supervisor)
    alone = finding(examine("job/net"), "job/net")
    assert (alone.severity, alone.remedy) == ("note", "penstock up")
    kill(jobs.record("net")["keeper"])
    lost = finding(examine("job/net"), "job/net")
    assert (lost.severity, lost.what) == ("bad", "it says that it runs, and its processes are gone")
