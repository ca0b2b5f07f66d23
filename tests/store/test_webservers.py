"""Folders of real web servers: each is listed with exact sizes, by as few requests as it allows."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import pytest

from penstock.bench.workspace import free_port
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import parse_source
from tests.support.processes import running
from tests.support.rclone import FILES, rclone_serves
from tests.support.trees import write_tree

NGINX = """user root; daemon off; pid {work}/pid; error_log {work}/error; events {{}}
http {{
    access_log off; default_type application/octet-stream;
    client_body_temp_path {work}/b; proxy_temp_path {work}/p; fastcgi_temp_path {work}/f;
    uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
    server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; autoindex_exact_size {exact}; }}
}}
"""


@contextmanager
def serve(kind: str, root: Path, work: Path) -> Iterator[str]:
    if kind == "rclone":
        with rclone_serves("http", root) as address:
            yield address
        return
    port = free_port()
    if kind == "python":
        command = [sys.executable, "-m", "http.server", str(port), "--bind=127.0.0.1"]
        command += [f"--directory={root}"]
    elif kind == "caddy":
        command = [program("caddy"), "file-server", "--browse", f"--root={root}"]
        command += [f"--listen=127.0.0.1:{port}"]
    else:
        exact = "on" if kind == "nginx" else "off"
        config = work / "nginx.conf"
        config.write_text(NGINX.format(work=work, port=port, root=root, exact=exact))
        command = [program("nginx"), "-e", str(work / "error"), "-c", str(config)]
    with running(command, port):
        yield f"127.0.0.1:{port}"


def program(name: str) -> str:
    found = which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert found, f"{name} is missing; `make test-slow` installs it"
    return found


# Whether the page of the server tells each size exactly, so that no file costs a request.
SERVERS = [
    ("rclone", True),
    ("python", False),
    pytest.param("caddy", True, marks=pytest.mark.slow),
    pytest.param("nginx", True, marks=pytest.mark.slow),
    pytest.param("nginx rounded", False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "exact"), SERVERS)
def test_the_folder_of_a_real_web_server_is_listed_and_read(
    tmp_path: Path, kind: str, exact: bool
) -> None:
    files = {**FILES, "<b>&'.txt": b"name", "50%.bin": b"percent", "empty/.keep": b""}
    write_tree(tmp_path / "root" / "set", files)
    (tmp_path / "work").mkdir()
    with serve(kind, tmp_path / "root", tmp_path / "work") as address:
        counters = Counters()
        store = open_store(parse_source(f"http://{address}/set"), StoreOptions(), counters)
        found = {info.key: info for page in store.list_all("") for info in page}
        sizes = {key: info.size_bytes for key, info in found.items() if key[-1] != "/"}
        hidden = {"empty/.keep"} - sizes.keys()  # nginx lists no names that begin with a dot
        assert sizes == {key: len(data) for key, data in files.items() if key not in hidden}
        heads = counters.by_label("store_requests").get("head", 0)
        assert (heads == 0) is exact
        assert all(info.mtime_ns for key, info in found.items() if key[-1] != "/")
        for key in ("deep/ünï&co.txt", "<b>&'.txt", "50%.bin", "large.bin"):
            size = len(files[key])
            got = store.get(key, found[key].version, 0, size, size)
            assert bytes(memoryview(got)) == files[key]
