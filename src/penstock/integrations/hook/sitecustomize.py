"""Runs first in every Python that `penstock run` starts, found through PYTHONPATH.

Leaves the interpreter as it would be without Penstock: the user's own sitecustomize runs, this
folder is not on sys.path, and of all that is installed beside Penstock only `penstock` itself can
be imported, if the interpreter has no other. When the script imports torch's DataLoader, hooks it
and `open`.

The interpreter may be older than those that Penstock supports: this file must run on Python 3.9.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_DATALOADER = "torch.utils.data.dataloader"
_OLDEST = (3, 11)


class _PenstockFinder:
    """Finds `penstock` where it is installed; the last finder, so that the script's own wins."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder]) if fullname == "penstock" else None


class _DataLoaderFinder:
    """Installs the hooks right after torch's DataLoader is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _DATALOADER:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                _install_after(spec)
                return spec
        return None


def _install_after(spec: ModuleSpec) -> None:
    loader = spec.loader
    if loader is None:
        return
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        try:
            if sys.version_info < _OLDEST:
                raise ImportError("Python {}.{} is too old".format(*sys.version_info[:2]))
            from penstock.integrations import loader_hook, loader_timing, quiet_open

            loader_hook.install(module)
            loader_timing.install(module)
            quiet_open.install()
        except Exception as error:  # noqa: BLE001 (the script must run in any case)
            _report(error)

    loader.exec_module = exec_module  # this loader loads only this module


def _report(error: Exception) -> None:
    if "PENSTOCK_RUN_REPORTED" not in os.environ:  # not repeated by child processes
        os.environ["PENSTOCK_RUN_REPORTED"] = "1"
        what = f"penstock: DataLoader is not hooked: {error}"
        print(f"{what}; hint: the script runs without a plan", file=sys.stderr, flush=True)


def _hook() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    package = os.path.dirname(os.path.dirname(here))
    sys.meta_path.append(_PenstockFinder(os.path.dirname(package)))
    sys.meta_path.insert(0, _DataLoaderFinder())


def _run_user_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        # What `site` expects if there is none; no module of this name stays loaded.
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_hook()
_run_user_sitecustomize()
