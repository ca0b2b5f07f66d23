"""`python batches.py FOLDER fork|spawn` prints what workers loaded with the data sets of ours."""

import json
import sys
from hashlib import sha256
from pathlib import Path

from torch.utils.data import DataLoader

from penstock.integrations.torch import PenstockFiles, PenstockImageFolder


def as_list(samples: list) -> list:
    return samples


def pixels(image) -> str:
    return sha256(image.tobytes()).hexdigest()


def main(folder: str, method: str) -> None:
    images = PenstockImageFolder(folder, transform=pixels)
    loaded = [[pixels(images.loader(path)), target] for path, target in images.samples]
    files = PenstockFiles(folder)
    warm = files.__getitems__(range(len(files)))  # this process has threads when it forks
    options = {"batch_size": 4, "num_workers": 2 if method == "fork" else 1, "collate_fn": as_list}
    both = (DataLoader(one, multiprocessing_context=method, **options) for one in (images, files))
    by_worker, data = ([sample for batch in loader for sample in batch] for loader in both)
    print(json.dumps({
        "images": [list(sample) for sample in by_worker] == loaded,
        "files": data == warm == [Path(path).read_bytes() for path in files.files],
        "count": len(data),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
