"""An ordinary training script: `python train.py FOLDER`. It does not know about Penstock."""

import argparse
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Like torchvision.datasets.ImageFolder: one folder per class."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(self.classes)
            for path in sorted((folder / name).glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            pixels = numpy.asarray(image.convert("RGB").resize((32, 32)), dtype=numpy.float32)
        return torch.from_numpy(pixels).flatten() / 255, label


def main(folder: Path, epochs: int, workers: int) -> None:
    torch.manual_seed(0)
    images = Images(folder)
    loader = DataLoader(images, batch_size=8, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(32 * 32 * 3, len(images.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        seen, total = 0, 0.0
        for pixels, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            total += loss.item() * len(labels)
        print(f"epoch {epoch}: {seen} images, mean loss {total / seen:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    main(options.folder, options.epochs, options.workers)
