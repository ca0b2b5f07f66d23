"""A training script's data part: `python train.py FOLDER` prints what it loaded."""

import hashlib
import json
import sys
import threading
from pathlib import Path

from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[str, str]]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, str]:
        path = self.paths[index]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return str(path.relative_to(self.folder)), digest


def main(folder: Path) -> None:
    loader = DataLoader(
        Samples(folder),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="fork",
    )
    epochs: list[dict[str, str]] = []
    for _ in range(2):
        epoch: dict[str, str] = {}
        for names, digests in loader:
            epoch.update(zip(names, digests, strict=True))
        epochs.append(epoch)
    wait_for_threads()
    print(json.dumps(epochs))


def wait_for_threads() -> None:
    """Until the threads that fed the workers have ended.

    They are the last to hold the semaphores of their queues. Cut off at exit between taking one
    away and saying so, they leave a semaphore that Python warns of: "leaked", and already gone.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
