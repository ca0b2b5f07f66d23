"""Hides this machine's own state, credentials and configuration from tests."""

import os
from pathlib import Path

import pytest

from penstock.store import redaction

_OURS = ("AWS_", "OSS_", "BOS_", "BCE_", "GOOGLE_", "AZURE_", "PENSTOCK_")


def isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on `folder` is the state and the home."""
    for name in list(os.environ):
        if name.startswith(_OURS):
            patch.delenv(name)
    patch.setenv("PENSTOCK_STATE_DIR", str(folder))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("HOME", str(folder))
    patch.delenv("XDG_CONFIG_HOME", raising=False)
    # A secret of an earlier test, such as "secret", would be cut out of this one's output.
    patch.setattr(redaction, "_known", ())
