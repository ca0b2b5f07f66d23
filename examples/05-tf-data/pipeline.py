"""tf.data over a mount, in a planned order: `python pipeline.py FOLDER`."""

import argparse
import random
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from penstock.integrations.ordered import read_in_order


def samples(folder: Path, epochs: int, seed: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield (encoded image, label), reshuffled in each epoch. Needs no TensorFlow."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    paths = [path for name in classes for path in sorted((folder / name).glob("*.jpg"))]
    labels = [classes.index(path.parent.name) for path in paths]
    # One plan over all epochs, so that the mount fetches across epoch boundaries.
    orders = (
        random.Random(seed + epoch).sample(range(len(paths)), len(paths)) for epoch in range(epochs)
    )
    for index, data in read_in_order(paths, chain.from_iterable(orders), label="tf.data"):
        yield data, labels[index]


def dataset(folder: Path, epochs: int, batch: int) -> Any:
    import tensorflow as tf

    def decode(data: Any, label: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(data, channels=3)
        return tf.image.resize(image, (32, 32)) / 255.0, label

    signature = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64))
    return (
        # The order is shuffled already: a tf.data shuffle would only cost memory.
        tf.data.Dataset.from_generator(partial(samples, folder, epochs), output_signature=signature)
        .map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch)
        .prefetch(tf.data.AUTOTUNE)
    )


def main(folder: Path, epochs: int, batch: int) -> None:
    try:
        batches = dataset(folder, epochs, batch)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise SystemExit("TensorFlow is not installed; hint: pip install tensorflow-cpu") from None
    seen, total = 0, 0.0
    for images, _labels in batches:
        seen += len(images)
        total += float(images.numpy().mean()) * len(images)
    print(f"{seen} images in {epochs} epochs, mean {total / seen:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    main(options.folder, options.epochs, options.batch)
