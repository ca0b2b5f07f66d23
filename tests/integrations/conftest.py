from collections.abc import Iterator

import pytest

from penstock.integrations import publisher
from tests.support import recorded


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[recorded.RecordedPlan]]:
    """The plans that this process makes, recorded instead of handed to a mount."""
    monkeypatch.setattr(publisher, "open_plan", recorded.open_plan)
    recorded.PLANS.clear()
    yield recorded.PLANS
    recorded.PLANS.clear()
