"""Metrics for a monitoring system: what they count, where they are served, and for how long."""

import os
import signal
import socket
import sys
import urllib.error
from pathlib import Path

import pytest

from penstock.bench.workspace import free_port
from penstock.daemon.control_socket import ControlServer, ask, listen
from penstock.daemon.mount_registry import control_socket, supervisor_socket
from penstock.integrations.plans import open_plan
from tests.support.kernelcaches import drop_pages
from tests.support.kills import note, processes_of
from tests.support.metrics import fetch, parse, scrape
from tests.support.mounts import Mounter, fail, penstock, succeed
from tests.support.processes import listens, start
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until, wait_until_gone

FILES = {f"train/{number}.jpg": bytes([number]) * 60_000 for number in range(8)}
BYTES = sum(map(len, FILES.values()))
ENDPOINT = "penstock.daemon.metrics_endpoint"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_tree(tmp_path / "set", FILES)
    return f"file://{tmp_path / 'set'}"


def test_a_scrape_counts_what_readers_and_the_store_did(
    s3: S3, empty_bucket: ObjectPath, mounter: Mounter, port: int
) -> None:
    write_tree(empty_bucket / "counted", FILES)
    where = (empty_bucket / "counted").source
    options = ("--endpoint", s3.endpoint, "--metrics", str(port), "--prefetch", "0")
    mount = mounter(where, *options, "--workers", "2", "--mode", "pagecache")
    assert f"metrics: http://127.0.0.1:{port}/metrics" in mount.said
    first = scrape(port)
    assert first["read_bytes_total"] == first["misses_total"] == first["store_bytes_total"] == 0
    assert first["store_requests_total ok get"] == first["store_requests_total timeout get"] == 0
    assert first["workers"] == 2
    assert read_tree(mount.path) == FILES
    mount.stats()  # waits until all of it is stored: until then memory serves it
    drop_pages(mount.path / name for name in FILES)
    assert read_tree(mount.path) == FILES, "from the cache"
    stats = mount.stats()  # which waits for what the workers have counted
    found = scrape(port)
    assert found["catalog_files"] == len(FILES)
    assert found["catalog_bytes"] == found["cached_bytes"] == found["store_bytes_total"] == BYTES
    assert found["read_bytes_total"] == 2 * BYTES
    assert found["requests_total read"] == stats["requests"]["READ"]
    assert found["misses_total"] >= len(FILES)
    assert found["store_requests_total ok get"] - found["hedges_total"] == len(FILES)
    assert found["store_request_seconds_count get"] == found["store_requests_total ok get"]
    assert found["fetch_seconds_count"] == found["fetch_seconds_bucket +Inf"] == len(FILES)
    (tier,) = stats["tiers"]
    assert found[f"hit_bytes_total {tier['name']}"] == BYTES
    assert found[f"hits_total {tier['name']}"] >= len(FILES)
    assert found[f"tier_used_bytes {tier['name']}"] == tier["used_bytes"]
    assert found[f"tier_quota_bytes {tier['name']}"] == tier["quota_bytes"]
    assert found["catalog_listed_timestamp_seconds"] == stats["listed_at_s"]
    assert found["serving"] == 1
    assert found["restarts_total"] == found["worker_restarts_total"] == 0
    assert found["plans_in_progress"] == found["loads_in_progress"] == 0
    assert parse(succeed("stats", mount.path, "--prometheus")).keys() == found.keys()


def test_no_label_is_the_name_of_an_object_or_a_bucket(
    mounter: Mounter, port: int, tmp_path: Path
) -> None:
    write_tree(tmp_path / "set", {"secret-name.jpg": b"x", "sub-folder/b": b"y"})
    mount = mounter(f"file://{tmp_path / 'set'}", "--metrics", str(port))
    assert len(read_tree(mount.path)) == 2
    text = fetch(port)
    for word in ("secret-name", "sub-folder", "file://"):
        assert word not in text
    assert f'mount="{mount.path}"' in text


def test_the_endpoint_survives_a_killed_server_and_counts_it(
    mounter: Mounter, source: str, port: int, state: Path
) -> None:
    mount = mounter(source, "--metrics", str(port))
    (endpoint,) = processes_of(mount.path, ENDPOINT)
    assert read_tree(mount.path) == FILES
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    assert scrape(port).keys() >= {"serving", "restarts_total"}, "whatever the moment"
    wait_until(lambda: note(state)["restarts"] == 1 and note(state)["state"] == "serving")
    found = scrape(port)
    assert (found["serving"], found["restarts_total"]) == (1, 1)
    assert found["catalog_files"] == len(FILES)
    assert processes_of(mount.path, ENDPOINT) == [endpoint]


def test_without_a_server_the_endpoint_says_so(
    mounter: Mounter, source: str, port: int, state: Path
) -> None:
    mount = mounter(source, "--metrics", str(port))
    server = mount.stats()["pid"]
    os.kill(server, signal.SIGSTOP)
    try:
        found = scrape(port)
    finally:
        os.kill(server, signal.SIGCONT)
    assert found == {"serving": 0, "restarts_total": 0}
    assert wait_until(lambda: scrape(port)["serving"])


def test_the_process_of_the_endpoint_is_replaced_when_it_ends(
    mounter: Mounter, source: str, port: int
) -> None:
    mount = mounter(source, "--metrics", str(port))
    for _ in range(2):
        (endpoint,) = processes_of(mount.path, ENDPOINT)
        os.kill(endpoint, signal.SIGKILL)
        assert scrape(port)["serving"] == 1, "a scrape waits for the next process"
        assert processes_of(mount.path, ENDPOINT) != [endpoint]
    assert mount.stats()["restarts"] == 0


def test_an_upgrade_moves_the_endpoint_opens_it_to_others_and_closes_it(
    mounter: Mounter, source: str, port: int
) -> None:
    mount = mounter(source)
    assert processes_of(mount.path, ENDPOINT) == []
    succeed("upgrade", mount.path, "--metrics", str(port))
    assert scrape(port)["serving"] == 1
    other = free_port()
    succeed("upgrade", mount.path, "--metrics", str(other))
    assert scrape(other)["serving"] == 1
    assert not listens(port)
    succeed("upgrade", mount.path, "--metrics", f"0.0.0.0:{other}")
    assert parse(fetch(other, host="127.0.0.2"))["serving"] == 1, "the same port, all interfaces"
    succeed("upgrade", mount.path, "--prefetch", "2")
    assert scrape(other)["serving"] == 1, "an upgrade of something else keeps it"
    succeed("upgrade", mount.path, "--metrics", "off")
    assert not listens(other)
    assert processes_of(mount.path, ENDPOINT) == []


def test_a_bare_port_is_reached_from_this_machine_alone(
    mounter: Mounter, source: str, port: int
) -> None:
    mounter(source, "--metrics", str(port))
    assert scrape(port)["serving"] == 1
    # Every 127.x.x.x is this machine; a socket on all interfaces would answer on each.
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetch(port, host="127.0.0.2")


def test_a_port_that_is_taken_is_the_users_mistake_and_mounts_nothing(
    mounter: Mounter, source: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (where := tmp_path / "where").mkdir()
        said = fail("mount", source, where, "-b", "--no-cache", "--metrics", port)
        assert f"--metrics 127.0.0.1:{port}: Address already in use" in said
        assert "hint: each mount needs a port of its own" in said
        assert not os.path.ismount(where)
        mount = mounter(source)
        before = mount.stats()["pid"]
        assert "Address already in use" in fail("upgrade", mount.path, "--metrics", port)
        assert mount.stats()["pid"] == before, "the old server goes on"
    said = fail("upgrade", mount.path, "--metrics", f"192.0.2.1:{port}")
    assert "hint: give the address of an interface of this machine" in said


def test_an_upgrade_that_fails_keeps_the_endpoint_where_it_is(
    mounter: Mounter, source: str, port: int, tmp_path: Path
) -> None:
    mount = mounter(source, "--metrics", str(port))
    other = free_port()
    (bad := tmp_path / "file").write_text("")
    assert penstock("upgrade", mount.path, "--metrics", str(other), "--cache-dir", bad).returncode
    assert scrape(port)["serving"] == 1
    assert not listens(other)


def test_the_endpoint_ends_with_the_mount_and_with_its_supervisor(
    mounter: Mounter, source: str, port: int, state: Path
) -> None:
    mount = mounter(source, "--metrics", str(port))
    (endpoint,) = processes_of(mount.path, ENDPOINT)
    mount.umount()
    assert not listens(port)
    assert processes_of(mount.path, ENDPOINT) == []
    again = mounter(source, "--metrics", str(port))
    (endpoint,) = processes_of(again.path, ENDPOINT)
    os.kill(note(state)["pid"], signal.SIGKILL)
    wait_until_gone(endpoint)
    assert not listens(port)


def test_one_scrape_is_one_request_to_the_server(mounter: Mounter, source: str, port: int) -> None:
    mount = mounter(source, "--metrics", str(port))
    path = control_socket(mount.path)
    moved = path.rename(path.with_name("moved.sock"))
    answer = {"values": [["catalog_files", [], 7], ["of_a_newer_release", [], 1]]}
    asked: list[object] = []

    def answer_instead(request: dict[str, object]) -> dict[str, object]:
        asked.append(request)
        return answer

    server = ControlServer(listen(path), {"metrics": answer_instead})
    found = scrape(port)
    server.close()
    moved.rename(path)
    assert asked == [{"verb": "metrics"}]
    assert (found["serving"], found["catalog_files"]) == (1, 7)
    assert not any("newer" in name for name in found)


def test_other_paths_and_silent_clients_do_not_disturb_a_scrape(
    mounter: Mounter, source: str, port: int
) -> None:
    mount = mounter(source, "--metrics", str(port))
    assert "/metrics" in fetch(port, "/")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(port, "/etc/passwd")
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
    rude = socket.create_connection(("127.0.0.1", port))
    rude.sendall(b"\xff\x00 / HTTP/9\r\n\r\n")
    assert scrape(port)["serving"] == 1
    for one in (*silent, rude):
        one.close()
    (endpoint,) = processes_of(mount.path, ENDPOINT)
    assert scrape(port)["serving"] == 1
    assert processes_of(mount.path, ENDPOINT) == [endpoint]


def test_all_mounts_are_printed_at_once_each_with_its_label(mounter: Mounter, source: str) -> None:
    paths = [mounter(source).path for _ in range(2)]
    text = succeed("stats", "--prometheus")
    assert text.count("# TYPE penstock_serving gauge") == 1
    for path in paths:
        assert f'penstock_serving{{mount="{path}"}} 1.0' in text
    assert "--prometheus excludes" in fail("stats", paths[0], "--prometheus", "-o", "json")
    assert "is not mounted" in fail("stats", "/tmp", "--prometheus")


def test_loads_and_plans_are_counted_while_they_last(
    mounter: Mounter, source: str, port: int
) -> None:
    mount = mounter(source, "--metrics", str(port), "--buffer-size", "32MiB")
    assert scrape(port)["buffer_limit_bytes"] == 32 << 20
    slow = start([sys.executable, "-m", "penstock", "warm", mount.path, "--rate", "1KiB/s"])
    wait_until(lambda: scrape(port)["loads_in_progress"] == 1)
    slow.kill()
    slow.wait()
    wait_until(lambda: scrape(port)["loads_in_progress"] == 0)
    with open_plan([str(mount.path / name) for name in FILES]):
        wait_until(lambda: scrape(port)["plans_in_progress"] == 1)
    wait_until(lambda: scrape(port)["plans_in_progress"] == 0)
    succeed("warm", mount.path)
    found = scrape(port)
    assert found["prefetched_blocks_total"] == len(FILES)
    assert found["store_bytes_total"] == BYTES
    assert ask(supervisor_socket(mount.path), "settings")["settings"]["metrics"].endswith(str(port))
