"""TrainingJob: what is taken, and what is refused."""

from typing import Any

import pytest

from penstock import api
from penstock.errors import ManifestError
from penstock.specs.jobs import TrainingJob, cores
from tests.support.jobs import job


def mpi(name: str = "net", command: Any = "./train.sh", **spec: Any) -> dict[str, Any]:
    return job(name, command, **{"trainer": "mpi", **spec})


@pytest.mark.parametrize(
    ("command", "words"), [("a | b", ["/bin/sh", "-c", "a | b"]), (["a", "b"], ["a", "b"])]
)
def test_a_text_is_read_by_a_shell_and_words_are_taken_as_they_are(
    command: str | list[str], words: list[str]
) -> None:
    resource = api.validate(mpi(command=command))[0].resource
    assert isinstance(resource, TrainingJob)
    assert resource.spec.command == words


@pytest.mark.parametrize(("text", "count"), [("2", 2.0), ("0.5", 0.5), ("500m", 0.5)])
def test_cores_are_written_as_in_kubernetes(text: str, count: float) -> None:
    assert cores(text) == count
    api.validate(mpi(cpu=text))


def data(*paths: str) -> dict[str, Any]:
    return {"data": [{"dataset": f"set{i}", "mountPath": path} for i, path in enumerate(paths)]}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(mpi(**data("/")), "spec.data.0.mountPath: / is all that the job has"),
     (mpi(**data("data")), "'data' is not an absolute path"),
     (mpi(**data("/a/../b")), "has .. in it"),
     (mpi(**data("/proc/x")), "is a place of the system"),
     (mpi(**data("/data", "/data/")), "spec.data.1: is seen at /data, and so is spec.data.0"),
     (mpi(**data("/data", "/data/sub")), "/data/sub lies inside /data"),
     (mpi(command=" "), "spec.command: is empty"),
     (mpi(cpu="two"), "spec.cpu: 'two' is no number of cores"),
     (mpi(memory="4GB"), "did you mean 4Gi"),
     (mpi(trainer="torch"), "did you mean pytorch"),
     (mpi(trainer="tf", launch="ranks"), "spec.launch: has no meaning for tf"),
     (mpi(ps=1), "spec.ps: mpi has no parameter servers"),
     (mpi(workers=100_000), "more than one machine runs"),
     (mpi(image="torch:2", plan=True), "spec.plan: what the image holds is not known"),
     (mpi(workingDir="x"), "'x' is not an absolute path"),
     (mpi(env=[{"name": "A B", "value": "c"}]), "'A B' is not a variable's name"),
     (mpi(env=[{"name": "PENSTOCK_JOB", "value": "c"}]), "PENSTOCK_JOB is set for each job"),
     (mpi(name="n" * 64), "metadata.name: has 64 letters"),
     (mpi(gpu=2), "did you mean gpus")],
)  # fmt: skip
def test_mistakes_are_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ManifestError) as caught:
        api.validate(wrong)
    assert what in f"{caught.value} {caught.value.hint}"
