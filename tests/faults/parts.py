"""Which parts of Penstock these tests can lean on. What is missing is skipped, and says so."""

from importlib.util import find_spec

import pytest

from penstock.daemon.settings import MountSettings

HAS_PATIENCE = hasattr(MountSettings, "deadline_s")
HAS_SUPERVISOR = find_spec("penstock.daemon.supervisor") is not None

needs_patience = pytest.mark.skipif(not HAS_PATIENCE, reason="needs `penstock mount --deadline`")
