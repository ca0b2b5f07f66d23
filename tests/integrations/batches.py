"""`python batches.py FOLDER` prints whether workers, forked and spawned, load with the data sets of
ours what this process does. One loader for both data sets: each spawned worker imports torch."""

import json
import sys
from hashlib import sha256
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from penstock.integrations.torch import PenstockFiles, PenstockImageFolder


def as_list(samples: list) -> list:
    return samples


def pixels(image) -> str:
    return sha256(image.tobytes()).hexdigest()


class Both(Dataset):
    """The samples of two data sets, side by side."""

    def __init__(self, images: PenstockImageFolder, files: PenstockFiles) -> None:
        self.images, self.files = images, files

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> list:
        loaded = zip(
            self.images.__getitems__(indices), self.files.__getitems__(indices), strict=True
        )
        return list(loaded)


def main(folder: str) -> None:
    images = PenstockImageFolder(folder, transform=pixels)
    loaded = [(pixels(images.loader(path)), target) for path, target in images.samples]
    files = PenstockFiles(folder)
    warm = files.__getitems__(range(len(files)))  # this process has threads when it forks
    told = {}
    for method, workers in (("fork", 2), ("spawn", 1)):
        loader = DataLoader(
            Both(images, files), batch_size=4, collate_fn=as_list,
            num_workers=workers, multiprocessing_context=method,
        )  # fmt: skip
        by_worker, data = zip(*(sample for batch in loader for sample in batch), strict=True)
        told[method] = {
            "images": list(by_worker) == loaded,
            "files": list(data) == warm == [Path(path).read_bytes() for path in files.files],
            "count": len(data),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
