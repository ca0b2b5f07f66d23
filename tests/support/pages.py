"""The page of `penstock ui`, served by this process, and a client that is no browser."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from penstock.ui.results import Results
from penstock.ui.server import PageServer


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: str


class Page:
    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.port = server.server_port
        self.cookie = f"penstock={server.token}"

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Answered:
        """Ask as the browser does that has opened the printed address. A header that is an empty
        string is not sent; `_` in its name is a hyphen."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        line = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value:
                    line.putheader(name, value)
            if body is not None:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            answer = line.getresponse()
            return Answered(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            line.close()

    def get(self, path: str = "", **headers: str) -> Answered:
        """Ask for a path below the page's own."""
        return self.ask(self.server.home + path, **headers)

    def overview(self) -> dict[str, Any]:
        answer = self.get("overview")
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def items(self, section: str) -> list[dict[str, Any]]:
        found = self.overview()[section]
        assert "error" not in found, found
        return found["items"]


@contextmanager
def serving(folders: Sequence[Path] = ()) -> Iterator[Page]:
    with PageServer(0, Results(folders)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Page(server)
        finally:
            server.shutdown()
            thread.join()
