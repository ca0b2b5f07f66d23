"""Data sets that load the files of a batch concurrently: DataLoader calls `__getitems__`.

Threading: as any data set, used by one thread of each worker. Transforms run there, one after the
other, since they draw random numbers; only loading uses a thread pool, so `load` and `loader` must
be thread-safe. The pool belongs to the process that first uses it: a forked or spawned worker makes
its own.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import UsageError

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")

# How many files that are not in the page cache are waited for at once. A loader has several worker
# processes, so more threads in each would overload the mount.
THREADS = 8

_pool: tuple[int, ThreadPoolExecutor] | None = None


def load_all(load: Callable[[Item], Loaded], items: Sequence[Item]) -> list[Loaded]:
    """Return `load(item)` for each item, in order; raise the first error in this order."""
    if len(items) < 2:
        return [load(item) for item in items]
    # A slice for each thread, not a task for each file: a task costs 30 us, a warm file 40.
    slices = [items[start::THREADS] for start in range(min(THREADS, len(items)))]
    tasks = [_threads().submit(_load_slice, load, part) for part in slices]
    answers = [task.result() for task in tasks]
    loaded = [answers[place % THREADS][place // THREADS] for place in range(len(items))]
    for one in loaded:
        if isinstance(one, _Failed):
            raise one.error
    return loaded  # pyright: ignore[reportReturnType]


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _load_slice(load: Callable[[Item], Loaded], items: Sequence[Item]) -> "list[Loaded | _Failed]":
    loaded: list[Loaded | _Failed] = []
    for item in items:
        try:
            loaded.append(load(item))
        except Exception as error:  # noqa: BLE001 (raised again by load_all)
            loaded.append(_Failed(error))
    return loaded


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-batch")
    return _pool[1]


# torch is optional: scripts that only import this package need not have it.

if TYPE_CHECKING or find_spec("torch") is not None:
    from torch.utils.data import Dataset, Sampler
else:

    class _Missing:
        def __class_getitem__(cls, item: object) -> type:
            return cls

        def __new__(cls, *arguments: object, **options: object) -> "_Missing":
            raise UsageError(f"{cls.__name__} needs PyTorch", hint="pip install torch")

    Dataset = Sampler = _Missing

__all__ = ["Dataset", "Sampler"]


# The extensions of torchvision.
IMAGE_EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
)


class PenstockFiles(Dataset[Any]):
    """A list of files: `dataset[i]` is the bytes of `dataset.files[i]`.

    files  a folder, whose files are taken in sorted order, or the paths themselves
    load   makes a sample from a path; the default reads its bytes
    """

    def __init__(
        self,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        load: Callable[[str], Any] | None = None,
    ) -> None:
        if isinstance(files, str | PathLike):
            self.files = _files_below(os.path.expanduser(os.fspath(files)))
        else:
            self.files = [os.fspath(file) for file in files]
        self.load: Callable[[str], Any] = read_bytes if load is None else load

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.load(self.files[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return load_all(self.load, [self.files[index] for index in indices])


class PenstockImageFolder(Dataset[Any]):
    """A folder of images for each class, with the interface of torchvision's ImageFolder.

    The one difference: the images of a batch are loaded concurrently.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        extensions: Sequence[str] | None = None,
    ) -> None:
        if extensions is not None and is_valid_file is not None:
            raise ValueError("extensions and is_valid_file cannot both be passed")
        if is_valid_file is None and extensions is None:
            extensions = IMAGE_EXTENSIONS
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.transform = transform
        self.target_transform = target_transform
        self.loader: Callable[[str], Any] = load_image if loader is None else loader
        self.extensions = None if extensions is None else tuple(extensions)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        self.samples = self._find_samples(is_valid_file, allow_empty)
        self.targets = [target for _, target in self.samples]
        self.imgs = self.samples

    def find_classes(self, directory: str | PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """Return the folders below, sorted, and their numbers. Override it for other classes."""
        classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {directory}.")
        return classes, {name: number for number, name in enumerate(classes)}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        return self._transformed(self.loader(path), target)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        chosen = [self.samples[index] for index in indices]
        images = load_all(self.loader, [path for path, _ in chosen])
        return [
            self._transformed(image, target)
            for image, (_, target) in zip(images, chosen, strict=True)
        ]

    def _transformed(self, image: Any, target: Any) -> tuple[Any, Any]:
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def _find_samples(
        self, is_valid_file: Callable[[str], bool] | None, allow_empty: bool
    ) -> list[tuple[str, int]]:
        endings = self.extensions

        def is_image(path: str) -> bool:
            return endings is not None and path.lower().endswith(endings)

        valid = is_image if is_valid_file is None else is_valid_file
        samples: list[tuple[str, int]] = []
        empty: list[str] = []
        for name in sorted(self.class_to_idx):
            before = len(samples)
            number = self.class_to_idx[name]
            files = _files_below(os.path.join(os.fspath(self.root), name))
            samples.extend((path, number) for path in files if valid(path))
            if len(samples) == before:
                empty.append(name)
        if empty and not allow_empty:
            known = "" if endings is None else f" Supported extensions are: {', '.join(endings)}"
            raise FileNotFoundError(
                f"Found no valid file for the classes {', '.join(empty)}.{known}"
            )
        return samples


def read_bytes(path: str) -> bytes:
    # Not open(): before Python 3.14 it asks each file whether it is a terminal, which over FUSE is
    # a message to the server, and it allocates a buffer that one read of a whole file never uses.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        missing = os.fstat(descriptor).st_size
        parts: list[bytes] = []
        while missing > 0 and (part := os.read(descriptor, missing)):
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def load_image(path: str) -> Any:
    """Load an image as torchvision does: RGB, with Pillow."""
    from io import BytesIO

    from PIL import Image

    with Image.open(BytesIO(read_bytes(path))) as image:
        return image.convert("RGB")


def _files_below(folder: str) -> list[str]:
    """Return all files in the order of torchvision: sorted by folder, links followed."""
    found: list[str] = []
    for place, _, names in sorted(os.walk(folder, followlinks=True)):
        found.extend(os.path.join(place, name) for name in sorted(names))
    return found
