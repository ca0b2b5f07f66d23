"""torch, if it is there. Scripts that only look at this package need not have it."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.errors import UsageError

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
