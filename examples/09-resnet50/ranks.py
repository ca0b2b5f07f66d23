"""Which of how many processes this is: alone, under torchrun, or under Open MPI's mpirun."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


class NotPossible(Exception):
    """The options do not work on this machine, or not together."""


@dataclass(frozen=True)
class Ranks:
    rank: int
    count: int
    local: int  # on this machine
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join(*, use_gpu: bool) -> Ranks:
    """Join the other ranks, if there are any."""
    rank, count, local = (
        int(os.environ.get(ours) or os.environ.get(theirs) or default)
        for ours, theirs, default in (
            ("RANK", "OMPI_COMM_WORLD_RANK", 0),
            ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1),
            ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        )
    )
    device = torch.device("cpu")
    if use_gpu:
        if local >= torch.cuda.device_count():
            raise NotPossible(
                f"rank {rank} needs GPU {local}, and there are {torch.cuda.device_count()}; "
                "hint: as many processes as GPUs, or --device cpu"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if count > 1:
        # PyTorch reads these, and `penstock run`, which labels plans by rank.
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(local))
        dist.init_process_group(
            "nccl" if use_gpu else "gloo",
            store=_meeting_place(count),
            rank=rank,
            world_size=count,
            device_id=device if use_gpu else None,
        )
    return Ranks(rank, count, local, device)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def total(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def _meeting_place(count: int) -> dist.Store | None:
    """Return where the ranks meet; None: as torchrun has set it in the environment."""
    if "MASTER_ADDR" in os.environ:
        return None
    # mpirun provides no port. Its ranks on one machine share a folder that it removes at the end.
    # A file there cannot collide with others, which a guessed port could.
    folder = os.environ.get("PMIX_SERVER_TMPDIR")
    if folder is None or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != str(count):
        raise NotPossible(
            f"{count} processes, and no place to meet; "
            "hint: set MASTER_ADDR and MASTER_PORT to a machine and a free port of it"
        )
    # One machine: gloo would resolve the host's name, which may fail.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return dist.FileStore(str(Path(folder) / "torch-ranks-meet-here"), count)
