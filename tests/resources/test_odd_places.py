"""What else may be otherwise: where things lie, what has been lost, when somebody was killed."""

import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import api
from penstock.daemon.registry import find_note
from penstock.errors import PenstockError, UsageError
from penstock.mounttable import find_mount
from penstock.resources.admission import apply
from penstock.resources.nudge import is_running
from penstock.resources.removal import delete
from penstock.resources.state import State
from tests.cache.test_flights import wait_until
from tests.conftest import penstock
from tests.resources.conftest import condition, of_folder, ours, path_of, phase, secret


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_bytes(b"bytes")
    return folder


# -- where ---------------------------------------------------------------------------------


def at(manifest: dict[str, object], place: str | Path) -> dict[str, object]:
    return {
        **manifest,
        "metadata": {"name": "small", "annotations": {"penstock.dev/mount-path": str(place)}},
    }


def test_a_mount_path_with_a_link_in_it(declared: State, source: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place = tmp_path / "link" / "here"
    api.apply([at(of_folder("small", source), place), ours("small", tmp_path / "cache")])
    assert phase("small") == "Bound"
    assert (place / "file").read_bytes() == b"bytes"
    note = find_note(path_of("small"))
    assert penstock("up").returncode == 0
    assert phase("small") == "Bound"
    assert find_note(path_of("small")) == note
    api.apply(ours("small", tmp_path / "cache", "96Mi"))
    assert api.dataset("small").capacity_bytes == 96 << 20
    api.delete("dataset", "small")
    assert not (tmp_path / "real" / "here" / "file").exists()
    assert find_mount(tmp_path / "real" / "here") is None


@pytest.mark.parametrize("place", ["here/below", "~/x", "/"])
def test_a_mount_path_that_is_none_is_a_mistake(declared: State, source: Path, place: str) -> None:
    with pytest.raises(PenstockError) as refused:
        api.apply([at(of_folder("small", source), place), ours("small")])
    assert refused.value.exit_code == 2
    assert "mount-path" in str(refused.value)
    assert refused.value.hint
    assert declared.all() == []


def test_it_moves_and_the_cache_stays(declared: State, source: Path, tmp_path: Path) -> None:
    api.apply([of_folder("small", source), ours("small", tmp_path / "cache")])
    before = path_of("small")
    api.load("small", wait=True)
    api.apply(at(of_folder("small", source), tmp_path / "there"))
    assert path_of("small") == tmp_path / "there"
    assert not before.exists()
    assert api.dataset("small").cached_bytes == 5
    assert (tmp_path / "there" / "file").read_bytes() == b"bytes"


def test_a_place_that_is_taken_is_told(declared: State, source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_bytes(b"mine")
    with pytest.raises(PenstockError) as refused:
        api.apply([at(of_folder("small", source), tmp_path / "there"), ours("small")])
    assert refused.value.exit_code == 2
    assert phase("small") == "Failed"
    assert os.listdir(tmp_path / "there") == ["mine"]
    api.delete("dataset", "small")
    assert os.listdir(tmp_path / "there") == ["mine"]


def test_two_at_one_place_are_one_and_a_trouble(
    declared: State, source: Path, tmp_path: Path
) -> None:
    place = tmp_path / "there"
    api.apply([at(of_folder("small", source), place), ours("small")])
    second = of_folder("x", source)
    second["metadata"] = {"name": "x", "annotations": {"penstock.dev/mount-path": str(place)}}
    with pytest.raises(PenstockError):
        api.apply([second, ours("x")])
    assert phase("x") == "Failed"
    api.delete("dataset", "x")
    assert phase("small") == "Bound"
    assert (place / "file").read_bytes() == b"bytes"


# -- lost ----------------------------------------------------------------------------------


def test_without_the_key_of_the_secrets_it_is_told_and_deleted(
    declared: State, source: Path, tmp_path: Path
) -> None:
    small = of_folder("small", source)
    small["spec"]["mounts"][0]["options"] = {"aws.secretKey": "hidden-in-the-box"}
    api.apply([small, ours("small", tmp_path / "cache")])
    path = path_of("small")
    wait_until(lambda: not is_running(declared.folder))  # which knows the key
    (declared.folder / "secrets.key").unlink()
    done = penstock("up")
    assert done.returncode == 2
    assert "secrets.key is gone" in done.stderr
    assert "hint: apply the manifests with their secrets again" in done.stderr
    assert penstock("get", "datasets", "-o", "yaml").returncode == 0
    assert (path / "file").read_bytes() == b"bytes"
    # As the hint says.
    done = penstock("apply", "-f", "-", input=json.dumps(small))
    assert done.returncode == 0, done.stderr
    told = condition("small")
    assert told is not None
    assert told["status"] == "True"
    (declared.folder / "secrets.key").unlink()
    api.delete("dataset", "small")
    assert not path.exists()


def test_a_state_that_is_no_state_is_told(state: Path) -> None:
    (state / "resources.sqlite").write_bytes(b"not a database" * 100)
    for words in (["get", "datasets"], ["up"], ["serve"]):
        done = penstock(*words)
        assert done.returncode == 2
        assert "hint: move it away" in done.stderr


# -- killed, before a loop was woken ---------------------------------------------------------


def test_a_wish_whose_maker_was_killed_is_seen_to_by_whoever_looks(
    declared: State, source: Path
) -> None:
    apply(declared, api.read([of_folder("small", source), ours("small")]))
    assert not is_running(declared.folder)
    penstock("get", "datasets")
    wait_until(lambda: phase("small") == "Bound")
    wait_until(lambda: not is_running(declared.folder))
    delete(declared, declared.all())
    penstock("get", "datasets")
    wait_until(lambda: declared.all() == [])


def test_nobody_is_woken_where_nothing_is_to_be_done(
    declared: State, source: Path, tmp_path: Path
) -> None:
    api.apply([of_folder("small", source), ours("small"), secret(), ours("lone")])
    api.load("small", wait=True)
    lost = [of_folder("lost", tmp_path / "nowhere"), ours("lost")]
    with pytest.raises(PenstockError):
        api.apply(lost)
    with pytest.raises(UsageError, match="dataset lost is Failed"):
        api.load("lost")
    wait_until(lambda: not is_running(declared.folder))
    log = declared.folder / "logs" / "loop.log"
    before = (log.stat().st_mtime_ns, sorted(declared.folder.iterdir()))
    for kind in ("all", "datasets", "operations"):
        assert penstock("get", kind).returncode == 0
        assert not is_running(declared.folder)
    assert (log.stat().st_mtime_ns, sorted(declared.folder.iterdir())) == before


# -- a listing without end -------------------------------------------------------------------


class _Endless(http.server.BaseHTTPRequestHandler):
    """Each folder holds another one."""

    def do_GET(self) -> None:
        body = b'<html><body><h1>Index of /</h1><a href="more/">more/</a></body></html>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        threading.Event().wait(0.2)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/data/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kill", [False, True])
def test_one_that_is_still_being_listed_is_deleted_at_once(
    declared: State, endless: str, tmp_path: Path, kill: bool
) -> None:
    slow = of_folder("slow", Path("/"))
    slow["spec"]["mounts"][0]["mountPoint"] = endless
    api.apply([slow, ours("slow", tmp_path / "cache")], wait=False)
    wait_until(lambda: any((declared.folder / "catalogs").glob("*slow*")))
    if kill:
        loops = subprocess.run(
            ["fuser", declared.folder / "loop.lock"], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in loops:
            os.kill(int(pid), signal.SIGKILL)
    done = penstock("delete", "dataset", "slow")
    assert done.returncode == 0, done.stderr
    assert [str(one.key) for one in declared.all()] == ["penstockruntime/default/slow"]
