"""Which parts of Penstock these tests can lean on. What is missing is skipped, and says so."""

from dataclasses import fields
from importlib.util import find_spec

import pytest

from penstock.daemon.settings import MountSettings

HAS_PATIENCE = "deadline_s" in {field.name for field in fields(MountSettings)}
HAS_SUPERVISOR = find_spec("penstock.daemon.supervisor") is not None

needs_patience = pytest.mark.skipif(not HAS_PATIENCE, reason="needs `penstock mount --deadline`")
