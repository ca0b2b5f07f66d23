"""PyTorch over a mount: `PlannedSampler` sends the mount the order of each epoch before it begins,
`PenstockImageFolder` and `PenstockFiles` read the files of a batch concurrently.

    dataset = PenstockImageFolder("/mnt/imagenet/train", transform)
    sampler = PlannedSampler(RandomSampler(dataset), dataset, seed=7)
    loader = DataLoader(dataset, batch_size=256, sampler=sampler, num_workers=8)

Can be imported without torch; using it then raises an error that says so.
"""

from penstock.integrations.torch.datasets import PenstockFiles, PenstockImageFolder
from penstock.integrations.torch.sampler import PlannedSampler

__all__ = ["PenstockFiles", "PenstockImageFolder", "PlannedSampler"]
