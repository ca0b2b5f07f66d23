"""Modules that are imported when a test first uses them.

Every worker of pytest imports all test modules: `import torch` there takes 3 s and 700 MB.
"""

from importlib import import_module
from typing import Any


class Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # pytest looks for marks of its own
        return getattr(import_module(self._name), attribute)
