"""TrainingJob: what is taken, and what is refused."""

from typing import Any

import pytest

from penstock import api
from penstock.errors import ManifestError
from penstock.specs.jobs import TrainingJob, cores
from penstock.specs.kinds import find_kind
from penstock.specs.secrets import HIDDEN, take_secrets


def manifest(name: str = "net", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "penstock.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {"trainer": "mpi", "command": "./train.sh", **spec},
    }  # fmt: skip


@pytest.mark.parametrize("word", ["trainingjob", "trainingjobs", "job", "jobs", "tj"])
def test_it_has_many_names(word: str) -> None:
    assert find_kind(word).kind == "TrainingJob"


def test_a_text_is_read_by_a_shell_and_words_are_taken_as_they_are() -> None:
    for command, words in (("a | b", ["/bin/sh", "-c", "a | b"]), (["a", "b"], ["a", "b"])):
        job = api.validate(manifest(command=command))[0].resource
        assert isinstance(job, TrainingJob)
        assert job.spec.command == words


@pytest.mark.parametrize(("text", "count"), [("2", 2.0), ("0.5", 0.5), ("500m", 0.5)])
def test_cores_are_written_as_in_kubernetes(text: str, count: float) -> None:
    assert cores(text) == count
    api.validate(manifest(cpu=text))


def data(*paths: str) -> dict[str, Any]:
    return {"data": [{"dataset": f"set{i}", "mountPath": path} for i, path in enumerate(paths)]}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(manifest(**data("/")), "spec.data.0.mountPath: / is all that the job has"),
     (manifest(**data("data")), "'data' is not an absolute path"),
     (manifest(**data("/a/../b")), "has .. in it"),
     (manifest(**data("/proc/x")), "is a place of the system"),
     (manifest(**data("/data", "/data/")), "spec.data.1: is seen at /data, and so is spec.data.0"),
     (manifest(**data("/data", "/data/sub")), "/data/sub lies inside /data"),
     (manifest(command=" "), "spec.command: is empty"),
     (manifest(cpu="two"), "spec.cpu: 'two' is no number of cores"),
     (manifest(memory="4GB"), "did you mean 4Gi"),
     (manifest(trainer="torch"), "did you mean pytorch"),
     (manifest(trainer="tf", launch="ranks"), "spec.launch: has no meaning for tf"),
     (manifest(ps=1), "spec.ps: mpi has no parameter servers"),
     (manifest(workers=100_000), "more than one machine runs"),
     (manifest(image="torch:2", plan=True), "spec.plan: what the image holds is not known"),
     (manifest(workingDir="x"), "'x' is not an absolute path"),
     (manifest(env=[{"name": "A B", "value": "c"}]), "'A B' is not a variable's name"),
     (manifest(env=[{"name": "PENSTOCK_JOB", "value": "c"}]), "PENSTOCK_JOB is set for each job"),
     (manifest(name="n" * 64), "metadata.name: has 64 letters"),
     (manifest(gpu=2), "did you mean gpus")],
)  # fmt: skip
def test_mistakes_are_said(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ManifestError) as caught:
        api.validate(wrong)
    assert what in f"{caught.value} {caught.value.hint}"


def test_values_of_secrets_are_taken_out() -> None:
    variables = [{"name": "API_TOKEN", "value": "sesame"}, {"name": "EPOCHS", "value": "3"}]
    hidden, secrets = take_secrets(manifest(env=variables))
    assert [one["value"] for one in hidden["spec"]["env"]] == [HIDDEN, "3"]
    assert list(secrets.values()) == ["sesame"]
