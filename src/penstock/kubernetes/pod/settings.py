"""The mount settings of a server pod: `python -m penstock.kubernetes.pod.settings` writes them.

They are made from the manifests in the pod's environment and the Secrets that are mounted. It is a
process of its own, because what reads manifests is large, and `main` stays as long as the pod.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import ManifestError, PenstockError
from penstock.kubernetes import names
from penstock.kubernetes.mount_plan import in_container, plan_in_cluster
from penstock.kubernetes.server_set import referenced_of
from penstock.settings import MountSettings, encode
from penstock.specs.dataset import Dataset
from penstock.specs.models import Runtime, model_of

# Owner of files and folders, unless the manifests say otherwise: as volumes mostly have it.
_ROOT = 0


def main() -> None:
    """Write {"settings", "shown", "mount_type"}, or {"error", "hint", "exit_code"}."""
    try:
        settings, mount_type = read_settings(os.environ, Path(names.SECRETS_DIR))
        answer: dict[str, Any] = {
            "settings": encode(settings),
            "shown": settings.shown,
            "mount_type": mount_type,
        }
    except PenstockError as error:
        answer = {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}
    json.dump(answer, sys.stdout)


def read_settings(environment: Mapping[str, str], secrets: Path) -> tuple[MountSettings, str]:
    """Return the settings, and the type of the mount. Raises PenstockError."""
    served: dict[str, Any] = json.loads(environment[names.SERVED_VARIABLE])
    dataset, runtime = model_of(served["dataset"]), model_of(served["runtime"])
    if not isinstance(dataset, Dataset) or not isinstance(runtime, Runtime):
        raise ManifestError(f"{names.SERVED_VARIABLE} holds no Dataset and runtime")

    def secret(_namespace: str, name: str, key: str) -> str:
        try:
            return (secrets / name / key).read_text()
        except FileNotFoundError:
            raise PenstockError(
                f"Secret {name} has no key {key}",
                hint=f"kubectl describe secret -n {dataset.metadata.namespace} {name}",
            ) from None
        except ValueError:
            raise PenstockError(f"Secret {name}: the value of {key} is not text") from None

    plan = plan_in_cluster(dataset, runtime, secret, referenced_of(served["references"]))
    settings = in_container(plan.settings)
    if settings.uid is None:
        settings = replace(settings, uid=_ROOT)
    if settings.gid is None:
        settings = replace(settings, gid=_ROOT)
    return settings, names.mount_type(runtime.kind)


if __name__ == "__main__":
    main()
