"""What other processes of the same user say: control messages, answers to them, epoch plans."""

import fcntl
import json
import os
import socket
from array import array
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from penstock.cache.tier import TierSpec
from penstock.daemon.channel import Channel
from penstock.daemon.control_socket import Answer, Connection, ControlServer, exchange, listen
from penstock.daemon.epoch_plans import EpochPlans, Keeping
from penstock.daemon.server import Server
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import Supervisor
from penstock.daemon.warm_requests import WarmRequests
from penstock.errors import PenstockError, PlanError
from penstock.metrics import Counters
from penstock.store import redaction
from penstock.store.credentials import remember_settings
from penstock.warm import order, residency
from penstock.warm.order import OrderReader, OrderWriter
from penstock.warm.pace import Pace
from penstock.warm.page_cache import PageBudget
from penstock.warm.planned import PlannedFeed
from penstock.warm.prefetcher import LocalFetcher, Prefetcher
from tests.fuzz.target import Check, Target, watching
from tests.support.gated_set import BLOCK, Set
from tests.support.waiting import wait_until

_FILES = {"a": b"alpha", "d/b": b"x" * (BLOCK + 9)}
_MOST_SENT = 1 << 16
_PATHS, _PLAN = 1, 2  # bits of an input's first byte: which descriptors come with it


# -- the control socket ------------------------------------------------------------------------


class _Daemon:
    """A control server over the parts of a real server that take requests."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        tier = TierSpec("SSD", (folder / "cache",), 1 << 30)
        self._set = some = Set(folder, _FILES, 100 * BLOCK, (tier,))
        counters, budget = Counters(), PageBudget(1 << 20)
        prefetcher = Prefetcher(LocalFetcher(some.files, None, counters), counters)
        loads = WarmRequests(
            some.files,
            prefetcher,
            budget,
            folder,
            passthrough=True,
            is_held=lambda _ino: False,
            drop_pages=lambda _ino: None,
        )
        keeping = Keeping(lambda *_: None, lambda _: None, lambda _: None)
        plans = EpochPlans(some.files, prefetcher, None, budget, lambda _: None, keeping)
        part = SimpleNamespace(
            mode="page-cache",
            _notes=[],
            _tree=some.tree,
            _refresher=SimpleNamespace(last_error=None, refresh_now=self._refresh),
            _members=list,
        )
        self._server = ControlServer(
            listen(folder / "x.sock"),
            {
                "doctor": lambda request: Server._doctor(part, request),  # pyright: ignore
                "refresh": lambda request: Server._refresh(part, request),  # pyright: ignore
                "upgrade": self._upgrade,
            },
            {"plan": plans.converse, "warm": loads.converse},
        )
        self._plan = OrderWriter([b"a", b"d/b"], 4)
        self._plan.add(array("I", [0, 1]))
        for close in (self._server.close, some.cache.close, some.tree.close, self._plan.close):
            cleanup.callback(close)

    def _refresh(self) -> SimpleNamespace:
        return SimpleNamespace(files=1, size_bytes=1, changed=0, hidden=0, failures=())

    def _upgrade(self, request: Answer) -> Answer:
        """As a supervisor takes it, up to the start of a server."""
        plan = LaunchSpec(Path("/mnt"), "s3://b", {}, "python")
        asked = SimpleNamespace(_upgrade=None, _end_by_s=None, _plan=plan, _spawn=self._spawn)
        answer: Future[Answer] = Future()
        Supervisor._begin_upgrade(asked, request, answer)  # pyright: ignore
        return {"upgrading": True} if asked._upgrade is answer else answer.result(0)

    def _spawn(self, plan: LaunchSpec, *, asked_for: bool) -> None:
        assert asked_for
        assert max(plan.watchdog_s, plan.grace_s, plan.give_up_s) < float("inf")
        with mock.patch.object(redaction, "_known", ()):  # they are no secrets of this process
            remember_settings(plan.settings)
        for text in (plan.python, *plan.environment, *plan.environment.values()):
            os.fsencode(text or "")
        json.dumps(plan.settings)

    def ask(self, data: bytes) -> bytes:
        """All that is answered. Returns when nothing more can come."""
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        which = data[0] if data else 0
        with ours, os.fdopen(os.memfd_create("paths"), "wb", buffering=0) as paths:
            paths.write(b"a\0d/*\0")
            descriptors = [paths.fileno()] if which & _PATHS else []
            descriptors += [self._plan.descriptor] if which & _PLAN else []
            socket.send_fds(ours, [b" "], descriptors)
            ours.sendall(data[1:_MOST_SENT])
            if b"\n" not in data[1:_MOST_SENT]:
                ours.shutdown(socket.SHUT_WR)  # else it waits for the rest of the line
            self._server._answer(theirs)
            ours.shutdown(socket.SHUT_WR)  # ends a conversation
            answer = b""
            while piece := ours.recv(1 << 16):
                answer += piece
        self._set.store.asked.clear()
        return answer


@contextmanager
def _open_control(folder: Path) -> Iterator[Check]:
    with watching() as bugs, ExitStack() as cleanup:
        daemon = _Daemon(folder, cleanup)
        daemon.ask(CONTROL[-1])  # what is opened once, and stays open
        held = _open_files()

        def check(data: bytes) -> None:
            answer = daemon.ask(data)
            bugs.check()
            if b"\n" in data[1:_MOST_SENT]:
                for line in answer.splitlines():
                    assert isinstance(json.loads(line), dict)
                assert answer, "whoever asks must get an answer"
            wait_until(lambda: _open_files() <= held, "descriptors that nobody closes")

        yield check


def _open_files() -> int:
    """Of the kinds that come with requests: threads open databases whenever they like."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith(("socket:", "/memfd:paths")) for link in links)


def _said(which: int, **request: object) -> bytes:
    return bytes([which]) + json.dumps(request).encode() + b"\n"


_SETTINGS = {"grace_s": 1.0, "parts": [{"store": {"keys": {"sas_token": "sig=x"}}}]}
_WARM = {"patterns": 1, "everything": False, "order": "name", "concurrency": 2, "bytes_per_s": None}
CONTROL = [
    _said(0, verb="doctor", limit=10),
    _said(0, verb="refresh", only_new=False),
    _said(_PLAN, verb="plan", label="x", pid=1),
    _said(0, verb="upgrade", python="p", environment={"A": "b", "C": None}, settings=_SETTINGS),
    *(_said(_PATHS, verb="warm", action=action, **_WARM) for action in ("load", "check", "verify")),
    _said(_PATHS, verb="warm", action="evict", **_WARM),
]
_JSON_WORDS = (
    b"null",
    b"true",
    b"1e999",
    b"NaN",
    b"-1",
    b"[]",
    b"{}",
    b'"verb": ',
    b"9" * 5000,
    b"[" * 3000,
    b'"\\ud800"',
    b'"action": ',
    b'"list"',
    b'"limit": ',
    b"99999999999999999999",
    b'"concurrency": ',
    b'"bytes_per_s": ',
    b'"patterns": ',
    b'"everything": true',
)


@contextmanager
def _open_answers(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        with theirs, closing(Connection(ours)) as line:
            theirs.sendall(data[:_MOST_SENT])
            theirs.shutdown(socket.SHUT_WR)
            try:
                answer: Answer | None = exchange(line, {"verb": "stats"})
            except PenstockError:
                return
            assert answer is None or isinstance(answer, dict)

    yield check


@contextmanager
def _open_link(_folder: Path) -> Iterator[Check]:
    link, theirs = Channel.pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _MOST_SENT)

    def check(data: bytes) -> None:
        if not data:
            return  # the other side is gone
        theirs.send(data[:_MOST_SENT])
        received = link.receive()
        assert received is not None
        assert isinstance(received[0], dict)
        assert received[1] == []

    with watching(), theirs, closing(link):
        yield check


# -- epoch plans in shared memory --------------------------------------------------------------

# In an input each of these words comes first, then where the cursor is later, then the rest of the
# memory: a header is a page, and most of it means nothing.
_WORDS = (order._MAGIC_AT, order._FILES, order._NAME_BYTES, order._CAPACITY)
_CURSOR = (order._HANDED_OUT, order._DONE, order._END, order._GENERATION)
_FOUND = (order._MISSING, order._FIRST_MISSING)
_HEADER_BYTES = order._HEADER_WORDS * 8
_MOST_PLAN_BYTES = 1 << 20


@contextmanager
def _open_plans(folder: Path) -> Iterator[Check]:
    some = Set(folder, _FILES, 100 * BLOCK, ())
    probe = SimpleNamespace(check=lambda names: residency.HELD * len(names))

    def check(data: bytes) -> None:
        words, data = _words(data, (*_WORDS, *_CURSOR, *_FOUND))
        later, data = _words(data, _CURSOR)
        with _plan_memory(words, data) as descriptor:
            try:
                reader = OrderReader(descriptor)
            except PlanError:
                return
            feed = PlannedFeed(
                reader,
                some.files,
                probe,
                PageBudget(1 << 16),
                Pace(16),
                lambda _ino: None,
                lambda work: work(),
                "label",
                1,
            )
            feed.take(16)
            _store(descriptor, later)
            for _ in range(2):
                taken = feed.take(16)
                assert len(taken) <= 16
            json.dumps(feed.describe())
            feed.end()

    yield check
    some.cache.close()
    some.tree.close()


def _words(data: bytes, places: tuple[int, ...]) -> tuple[dict[int, bytes], bytes]:
    """So many words, by their place in the header, and what follows them."""
    words = {place: data[8 * n : 8 * n + 8].ljust(8, b"\0") for n, place in enumerate(places)}
    return words, data[8 * len(places) :]


@contextmanager
def _plan_memory(words: dict[int, bytes], rest: bytes) -> Iterator[int]:
    numbers = (int.from_bytes(words[place], "little") for place in _WORDS[1:])
    told_bytes = order._total_bytes(*numbers)
    size = told_bytes if told_bytes < _MOST_PLAN_BYTES else _HEADER_BYTES + len(rest)
    descriptor = os.memfd_create("plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with closing(os.fdopen(descriptor, "r+b", buffering=0)):
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, rest[: size - _HEADER_BYTES], _HEADER_BYTES)
        _store(descriptor, words)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, order._SEALS)
        yield descriptor


def _store(descriptor: int, words: dict[int, bytes]) -> None:
    for place, word in words.items():
        os.pwrite(descriptor, word, 8 * place)


def _plan_seed() -> bytes:
    with closing(OrderWriter([b"a", b"d/b", b"../x"], 8)) as writer:
        writer.add(array("I", [0, 1, 2, order.NOT_ON_MOUNT, 0]))
        writer.move(1, 1)
        memory = os.pread(writer.descriptor, 1 << 16, 0)
    words = [memory[8 * place : 8 * place + 8] for place in (*_WORDS, *_CURSOR, *_FOUND, *_CURSOR)]
    return b"".join(words) + memory[_HEADER_BYTES:]


CONTROL_TARGET = Target(
    "control",
    "whoever sends a line gets an answer, and no descriptor stays open",
    _open_control,
    CONTROL,
    _JSON_WORDS,
)
CONTROL_ANSWER_TARGET = Target(
    "control-answer",
    "whoever asked gets an answer, knows that the server is gone, or is told an error of ours",
    _open_answers,
    [b'{"pid": 1}\n', b'{"error": "no", "hint": null, "exit_code": 2}\n'],
    _JSON_WORDS,
)
LINK_TARGET = Target(
    "link",
    "what a supervisor, a server and its workers send each other is an object, or nothing",
    _open_link,
    [b'{"ready": ["x"]}', b'{"keep": "fuse", "remember": {"a": [1, null]}}', b"[1]"],
    _JSON_WORDS,
)
PLAN_TARGET = Target(
    "plan",
    "a plan that changes under its reader is refused, or brings files of the mount",
    _open_plans,
    [_plan_seed()],
)
