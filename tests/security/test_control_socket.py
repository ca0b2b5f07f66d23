"""The control socket asks who is there: modes alone can be opened by a careless chmod -R."""

from pathlib import Path

from tests.conftest import Mount
from tests.security.conftest import AsNobody
from tests.security.test_other_users import ASK, private, sockets, state  # noqa: F401 - fixtures


def test_another_user_gets_no_answer_even_where_the_modes_let_it_in(
    private: Mount, state: Path, as_nobody: AsNobody  # noqa: F811
) -> None:  # fmt: skip
    (state / "mounts").chmod(0o777)
    for place in sockets(state):
        place.chmod(0o777)
        # Closed, with or without a reset of what was still on its way to us.
        assert as_nobody(ASK, place).stdout in ("closed\n", "ECONNRESET\n", "EPIPE\n")
    assert private.stats()["files"] == 2, "its own user is answered"
