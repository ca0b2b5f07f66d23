"""Runs first in every Python that `penstock run` starts, found through PYTHONPATH.

Leaves the interpreter as it would be without us: the user's own sitecustomize runs, this folder is
not on sys.path, and of all that is installed beside Penstock only `penstock` itself can be
imported, if the interpreter has none. Then waits until the script imports torch's DataLoader, which
is hooked, and `open` with it.

The interpreter may be older than those that Penstock supports: nothing here needs more than 3.9.
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


class _PenstockAlone:
    """Finds `penstock` where we are installed; asked last, so that the script's own comes first."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder]) if fullname == "penstock" else None


class _WhenImported:
    """Installs the hooks right after torch's DataLoader was imported."""

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
            from penstock.integrations import loader_hook, quiet_open

            loader_hook.install(module)
            quiet_open.install()
        except Exception as error:  # noqa: BLE001 (whatever it is, the script must run)
            _say(error)

    loader.exec_module = exec_module  # of this one loader, which loads this one module


def _say(error: Exception) -> None:
    if "PENSTOCK_RUN_SAID" not in os.environ:  # children do not repeat it
        os.environ["PENSTOCK_RUN_SAID"] = "1"
        what = f"penstock: DataLoader is not hooked: {error}"
        print(f"{what}; hint: the script runs without a plan", file=sys.stderr, flush=True)


def _hook() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    package = os.path.dirname(os.path.dirname(here))
    sys.meta_path.append(_PenstockAlone(os.path.dirname(package)))
    sys.meta_path.insert(0, _WhenImported())


def _run_the_users_own() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        # What `site` expects where there is none; no module of this name is left behind.
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_hook()
_run_the_users_own()
