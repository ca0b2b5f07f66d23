"""The control socket."""

import stat
from pathlib import Path

import pytest

from penstock.daemon.control_socket import ControlServer, ask, listen
from penstock.errors import OptionError, PenstockError


def test_an_answer_arrives_however_long_the_socket_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    server = ControlServer(
        listen(folder / "x.sock"), {"echo": lambda request: {"said": request["text"]}}
    )
    assert ask(folder / "x.sock", "echo", text="hello") == {"said": "hello"}
    assert stat.S_IMODE((folder / "x.sock").stat().st_mode) == 0o600
    server.close()


def test_an_error_of_the_server_reaches_the_caller_unchanged(tmp_path: Path) -> None:
    def fail(_request: dict[str, object]) -> dict[str, object]:
        raise OptionError("no", hint="yes")

    server = ControlServer(listen(tmp_path / "x.sock"), {"fail": fail})
    with pytest.raises(PenstockError, match="no") as caught:
        ask(tmp_path / "x.sock", "fail")
    assert (caught.value.hint, caught.value.exit_code) == ("yes", 2)
    with pytest.raises(PenstockError, match="bad request"):
        ask(tmp_path / "x.sock", "unknown")
    server.close()
    with pytest.raises(PenstockError, match="does not answer"):
        ask(tmp_path / "none.sock", "stats")
