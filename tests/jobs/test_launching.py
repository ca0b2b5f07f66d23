"""Who may start, and what each trainer starts."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.jobs import launching
from penstock.jobs.containers import contained
from penstock.jobs.job_queue import Holding, Verdict, Waiting, decide
from penstock.jobs.launching import Instance, Machine, chosen_launch
from penstock.specs.jobs import TrainingJobSpec, cores


def decided(
    *waiting: Waiting, holding: Sequence[Holding] = (), gpus: int = 4, cores: float = 8
) -> dict[str, Verdict]:
    verdicts = decide(waiting, holding, range(gpus), cores)
    return {one.name: verdicts[one.order] for one in waiting}


def waits(name: str, **wants: Any) -> Waiting:
    return Waiting(name, (0.0, name), **wants)


def test_gpus_go_to_the_highest_priority_and_then_to_the_oldest_job() -> None:
    found = decided(waits("a", gpus=1), waits("b", gpus=2), holding=[Holding("old", (1,))])
    assert found == {"a": Verdict((0,)), "b": Verdict((2, 3))}
    found = decided(waits("a", gpus=1), waits("b", gpus=1), gpus=1)
    assert found == {"a": Verdict((0,)), "b": Verdict(None, "waits for 1 GPU; taken by job a")}
    found = decided(waits("a", gpus=1), waits("b", gpus=1, priority=5), gpus=1)
    assert (found["a"].gpus, found["b"].gpus) == (None, (0,))
    found = decided(waits("a", gpus=2), gpus=1)  # the machine had two
    assert found["a"] == Verdict(None, "waits for 2 GPUs; this machine has 1")


def test_no_job_overtakes_one_that_waits_for_many_gpus() -> None:
    waiting = (waits("big", gpus=4), waits("small", gpus=1), waits("without"))
    assert decided(*waiting, holding=[Holding("old", (0,))]) == {
        "big": Verdict(None, "waits for 4 GPUs; taken by job old"),
        "small": Verdict(None, "waits for 1 GPU, behind job big"),
        "without": Verdict(()),
    }


def test_requested_cores_are_counted_too() -> None:
    waiting = (waits("a", cores=2), waits("b", cores=3), waits("c"))
    assert decided(*waiting, holding=[Holding("old", (), 4.0)]) == {
        "a": Verdict(()),
        "b": Verdict(None, "waits for 3 cores; taken by jobs old, a"),
        "c": Verdict(()),
    }
    assert (cores("500m"), cores("2")) == (0.5, 2.0)
    # One that wants more than there are starts when it is alone.
    assert decided(waits("a", cores=100))["a"] == Verdict(())
    assert decided(waits("a", cores=100), holding=[Holding("old", (), 0.5)])["a"].gpus is None


def spec_of(trainer: str, command: Any = "python train.py", **more: Any) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate({"trainer": trainer, "command": command, **more})


def started(
    spec: TrainingJobSpec, launch: str = "ranks", gpus: Sequence[int] = (), root: bool = True
) -> list[Instance]:
    ports = tuple(range(7000, 7000 + launching.ports_needed(spec)))
    machine = Machine(root, tuple(gpus), ports, "/hosts", "/scratch")
    return launching.instances_of("net", spec, launch, {"A": "b"}, machine)


def test_one_mpirun_starts_a_process_for_each_gpu() -> None:
    spec = spec_of("horovod", workers=2, gpus=2)
    (launcher,) = started(spec, gpus=(0, 1, 4, 5))
    assert launcher.name == "net-launcher"
    assert launcher.argv == (
        "mpirun",
        "--allow-run-as-root",
        "-np",
        "4",
        "--oversubscribe",
        "--bind-to",
        "none",
        "/bin/sh",
        "-c",
        "python train.py",
    )
    assert launcher.env["CUDA_VISIBLE_DEVICES"] == "0,1,4,5"
    assert launcher.env["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert launcher.workers == 2
    assert launching.hostfile(spec) == "localhost slots=4\n"
    (planned,) = started(spec_of("mpi", plan=True))
    assert planned.argv[:4] == ("penstock", "run", "--", "mpirun")
    # A command that calls mpirun itself finds hosts and slots in its environment.
    (launcher,) = started(spec_of("mpi", "mpirun ./a", workers=2), "launcher", root=False)
    assert launcher.argv == ("/bin/sh", "-c", "mpirun ./a")
    assert launcher.env["OMPI_MCA_orte_default_hostfile"] == "/hosts"
    assert launcher.env["A"] == "b"
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in launcher.env


def test_pytorch_workers_each_have_a_torchrun_and_share_one_port() -> None:
    master, worker = started(spec_of("pytorch", ["train"], workers=2, gpus=2), gpus=(0, 1, 2, 3))
    assert (master.name, worker.name) == ("net-master-0", "net-worker-0")
    assert worker.argv == (
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--node-rank=1",
        "--master-addr=127.0.0.1",
        "--master-port=7000",
        "--max-restarts=0",
        "--no-python",
        "train",
    )
    assert master.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert worker.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    # A command that calls torchrun itself is told where to meet.
    _, worker = started(spec_of("pytorch", "torchrun train.py", workers=2), "launcher")
    assert worker.argv == ("/bin/sh", "-c", "torchrun train.py")
    reported = {
        name: worker.env[name] for name in ("MASTER_PORT", "RANK", "WORLD_SIZE", "PET_NNODES")
    }
    assert reported == {"MASTER_PORT": "7000", "RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2"}
    assert worker.env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_tensorflow_worker_gets_its_cluster_and_its_task() -> None:
    ps, first, second = started(spec_of("tf", workers=2, ps=1, gpus=1), gpus=(3, 7))
    assert [one.name for one in (ps, first, second)] == ["net-ps-0", "net-worker-0", "net-worker-1"]
    assert json.loads(second.env["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:7000", "127.0.0.1:7001"], "ps": ["127.0.0.1:7002"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (ps.awaited, first.awaited, second.gpus) == (False, True, (7,))


SCRIPTS = {
    "./launch.sh": "#!/bin/bash\nexec mpirun -np 2 ./a\n",
    "launch.sh": "mpirun ./a",
    "./rank.sh": "#!/bin/sh\n# started by mpirun\n./a\n",
    "./tool.py": "#!/usr/bin/env python3\nprint('mpirun me')\n",
}


@pytest.mark.parametrize(
    ("trainer", "command", "launch"),
    [("mpi", "cd /x && /usr/bin/mpirun -np 4 ./a", "launcher"),
     ("mpi", ["mpiexec", "./a"], "launcher"),
     ("mpi", "python train.py --name mpirun-like", "ranks"),
     ("mpi", "./launch.sh --epochs 3", "launcher"),
     ("mpi", "X=1 bash launch.sh", "launcher"),
     ("mpi", "./rank.sh", "ranks"),
     ("mpi", "./tool.py", "ranks"),
     ("mpi", "./gone.sh", "ranks"),
     ("pytorch", "torchrun --nproc-per-node 2 train.py", "launcher"),
     ("pytorch", "python -m torch.distributed.run train.py", "launcher"),
     ("pytorch", "mpirun ./a", "ranks"),
     ("tf", "mpirun ./a", "ranks")],
)  # fmt: skip
def test_a_command_that_starts_its_own_ranks_is_recognized(
    trainer: str, command: Any, launch: str
) -> None:
    assert chosen_launch(spec_of(trainer, command), SCRIPTS.get) == launch
    if trainer == "mpi":  # what the manifest says wins
        other = {"ranks": "launcher", "launcher": "ranks"}[launch]
        assert chosen_launch(spec_of("mpi", command, launch=other), SCRIPTS.get) == other


@pytest.mark.parametrize(
    ("engine", "devices"),
    [("docker", ["--gpus", '"device=2"']), ("podman", ["--device", "nvidia.com/gpu=2"])],
)
def test_a_container_gets_no_value_in_its_arguments(engine: str, devices: list[str]) -> None:
    _, worker = started(spec_of("pytorch", ["train"], workers=2, gpus=1), gpus=(1, 2))
    inside = contained(
        worker,
        engine,
        "torch:2",
        uid="0123456789",
        binds=[("/mnt/x", "/data")],
        variables={"API_KEY": "open-sesame", "CUDA_VISIBLE_DEVICES": "2", "PATH": "/opt/bin"},
        working_dir="/w",
        cores=1.5,
        memory_bytes=1 << 30,
        client={"PATH": "/bin"},
        is_folder=lambda _: True,
    )
    words = inside.argv[: inside.argv.index("torch:2")]
    assert tuple(word for word in words if word != "--init") == (
        engine,
        "run",
        "--name",
        "penstock-01234567-net-worker-0",
        "--label",
        "penstock-job=0123456789",
        "--network",
        "host",
        "--ipc",
        "host",
        "-v",
        "/mnt/x:/data:ro",
        "-v",
        "/w:/w",
        "-w",
        "/w",
        *devices,
        "--cpus",
        "1.5",
        "--memory",
        "1073741824",
        "--memory-swap",
        "1073741824",
        "-e",
        "API_KEY",
        "-e",
        "PATH=/opt/bin",
    )
    assert inside.env == {"PATH": "/bin", "API_KEY": "open-sesame"}
    assert inside.argv[-len(worker.argv) :] == worker.argv
