"""What the operator learns from server pods, over real HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.operator.objects import Pod
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.servers import Servers
from penstock.kubernetes.operator.view import Task
from tests.kubernetes.declared import BRIEF
from tests.kubernetes.memory_api import wait_until

KEY = ServedKey("default", "demo")


class OneServer:
    """As much of a View as `Servers` reads: one data set with one server pod."""

    def __init__(self) -> None:
        self.pod: Pod | None = Pod(
            "uid", "default", "demo-fuse-x", "node-1", "Running", "127.0.0.1", True, False, (),
            "demo",
        )  # fmt: skip

    def served_keys(self) -> list[ServedKey]:
        return [KEY] if self.pod else []

    def servers_of(self, _key: ServedKey) -> list[Pod]:
        return [self.pod] if self.pod else []


class Answers:
    def __init__(self) -> None:
        self.body: bytes = b""
        self.asked = 0
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.asked += 1
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(answers.body)))
                self.end_headers()
                self.wfile.write(answers.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def say(self, **answer: Any) -> None:
        self.body = json.dumps({"ready": False, "error": None, "brief": None, **answer}).encode()


@pytest.fixture
def answers() -> Iterator[Answers]:
    found = Answers()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def queue() -> WorkQueue[Task]:
    return WorkQueue()


@pytest.fixture
def view() -> OneServer:
    return OneServer()


@pytest.fixture
def servers(answers: Answers, view: OneServer, queue: WorkQueue[Task]) -> Iterator[Servers]:
    port = answers.http.server_address[1]
    found = Servers(view, queue, every_s=0.1, port=port)  # type: ignore[arg-type]
    answers.say()
    found.start()
    yield found
    found.stop()


def test_counts_of_a_server_bring_its_dataset_into_the_queue(
    answers: Answers, servers: Servers, queue: WorkQueue[Task]
) -> None:
    answers.say(ready=True, brief=BRIEF)
    assert queue.take() == Task("dataset", "default", "demo")
    wait_until(lambda: servers.summary(KEY).amounts.get("fileNum") == "10", "no counts")
    assert servers.summary(KEY).serving == 1


def test_an_answer_without_news_makes_no_work(
    answers: Answers, servers: Servers, queue: WorkQueue[Task]
) -> None:
    answers.say(ready=True, brief=BRIEF)
    key = queue.take()
    assert key is not None
    queue.done(key)
    asked = answers.asked
    wait_until(lambda: answers.asked > asked + 2, "it asks no more")
    assert len(queue) == 0


def test_a_mistake_of_the_user_counts_at_once_and_a_short_wait_does_not(
    answers: Answers, servers: Servers
) -> None:
    answers.say(error={"error": "it waits for the node", "hint": None, "exit_code": 1})
    wait_until(lambda: answers.asked > 1, "it asks no more")
    assert servers.summary(KEY).error is None
    answers.say(error={"error": "access denied", "hint": "check the keys", "exit_code": 2})
    error = wait_until(lambda: servers.summary(KEY).error, "no error")
    assert (error.message, error.hint) == ("access denied", "check the keys")


def test_reports_of_a_pod_that_is_gone_are_forgotten(
    answers: Answers, servers: Servers, view: OneServer
) -> None:
    answers.say(ready=True, brief=BRIEF)
    wait_until(lambda: servers.summary(KEY).serving, "no report")
    view.pod = None
    assert servers.summary(KEY).amounts == {}
