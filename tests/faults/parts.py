"""Which parts of Penstock these tests can lean on. What is missing is skipped, and says so."""

import pytest

from penstock.daemon.settings import MountSettings

HAS_PATIENCE = hasattr(MountSettings, "deadline_s")

needs_patience = pytest.mark.skipif(not HAS_PATIENCE, reason="needs `penstock mount --deadline`")
