"""Stream Parquet files from a mount as a Hugging Face data set: `python tables.py FOLDER`."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import IterableDataset
from pyarrow.parquet import ParquetFile
from torch.utils.data import DataLoader

from penstock.integrations.ordered import announce


def rows(parts: list[list[str]]) -> Iterator[dict[str, Any]]:
    """Yield rows. Each worker gets some of the parts and announces its files to the mount."""
    for files in parts:
        for path in announce(files, str, label="parquet"):
            for batch in ParquetFile(path).iter_batches():
                yield from batch.to_pylist()


def main(folder: Path, workers: int) -> None:
    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    parts = [files[number::workers] for number in range(workers)]
    table = IterableDataset.from_generator(rows, gen_kwargs={"parts": parts})
    seen, total = 0, 0
    for row in DataLoader(table, batch_size=None, num_workers=workers):
        seen += 1
        total += row["label"]
    print(f"{seen} rows of {len(files)} files, sum of labels {total}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    main(options.folder, options.workers)
