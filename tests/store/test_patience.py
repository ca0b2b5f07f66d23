"""What is tried again, how long, and what is not."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    SourceError,
    StoreError,
)
from penstock.metrics import Counters
from penstock.store import Chunks, ObjectInfo
from penstock.store.connect import StoreOptions, open_store
from penstock.store.retry import RetryingStore, open_reliable_store
from penstock.store.source import parse_source
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.scripted_store import Clock, Scripted


def ask(store: RetryingStore) -> bytes:
    return bytes(memoryview(store.get("key", "v", 0, 4, 4)))


DOWN = StoreError("down", kind="refused")


def test_transient_errors_are_retried_and_counted_by_kind() -> None:
    counters, clock = Counters(), Clock()
    store = Scripted(DOWN, StoreError("busy", kind="slow_down"), DOWN, b"data")
    patient = RetryingStore(store, counters, deadline_s=60, time=clock.time)
    assert ask(patient) == b"data"
    assert counters.by_label("store_retries") == {"refused": 2, "slow_down": 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(StoreError("no", kind="timeout"), "timeout"), (AccessDenied("no"), "denied"),
     (ObjectNotFound("no"), "not_found"), (ObjectChanged("no"), "changed"),
     (SourceError("no"), "invalid")],
)  # fmt: skip
def test_requests_are_counted_by_verb_and_by_how_they_ended(
    error: PenstockError, outcome: str
) -> None:
    counters, clock = Counters(), Clock()
    patient = RetryingStore(Scripted(error), counters, deadline_s=0.3, time=clock.time)
    with pytest.raises(type(error)):
        ask(patient)
    with pytest.raises(type(error)):
        patient.list_level("")
    found = {labels: n for name, labels, n in counters.listed() if name == "store_requests"}
    assert set(found) == {("get", outcome), ("list", outcome)}
    assert counters.total("store_requests") == 0, "none was answered"
    answered = RetryingStore(Scripted(error, b"data"), counters, deadline_s=60, time=clock.time)
    if outcome == "timeout":
        assert ask(answered) == b"data"
        seconds = [labels for name, labels, _ in counters.listed() if "_seconds" in name]
        assert seconds == [("get", "0.005"), ("get", "sum")], "of the one that was answered"


def test_pauses_double_up_to_a_limit_with_full_jitter() -> None:
    clock = Clock()
    patient = RetryingStore(Scripted(DOWN), Counters(), deadline_s=60, time=clock.time)
    with pytest.raises(StoreError):
        ask(patient)
    assert clock.pauses[:7] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert max(clock.pauses) == 5.0
    jittered = Clock(random.Random(1).random)
    with pytest.raises(StoreError):
        ask(RetryingStore(Scripted(DOWN), Counters(), deadline_s=60, time=jittered.time))
    assert len(set(jittered.pauses)) == len(jittered.pauses)
    assert min(jittered.pauses) < 1.0 < max(jittered.pauses) < 5.0


@pytest.mark.parametrize("deadline_s", [1.0, 10.0, 60.0])
def test_at_the_deadline_the_last_error_is_raised_unchanged(deadline_s: float) -> None:
    clock, store = Clock(), Scripted(StoreError("first", kind="reset"), DOWN)
    patient = RetryingStore(store, Counters(), deadline_s=deadline_s, time=clock.time)
    with pytest.raises(StoreError) as raised:
        ask(patient)
    assert raised.value is DOWN
    assert deadline_s - 0.1 <= clock.now_s < deadline_s


@pytest.mark.parametrize("kind", [ObjectNotFound, ObjectChanged, AccessDenied, SourceError])
def test_permanent_errors_are_not_retried(kind: type[PenstockError]) -> None:
    clock, store = Clock(), Scripted(kind("no"))
    with pytest.raises(kind):
        ask(RetryingStore(store, Counters(), deadline_s=60, time=clock.time))
    assert store.asked == 1
    assert not clock.pauses


class Upload(Scripted):
    """A store whose uploads break after so many bytes each."""

    def __init__(self, clock: Clock, *breaks_after: int) -> None:
        super().__init__(b"")
        self.clock = clock
        self.breaks_after = list(breaks_after)

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        self.asked += 1
        self.clock.now_s += 100  # longer than any deadline
        breaks_after = self.breaks_after.pop(0) if self.breaks_after else size_bytes
        taken = b""
        for chunk in chunks():
            taken += bytes(chunk)
            if len(taken) > breaks_after:
                raise StoreError("broken", kind="reset")
        return taken.decode()


def letters() -> Iterator[bytes]:
    return iter([b"a", b"b", b"c", b"d"])


def test_an_upload_continues_past_the_deadline_while_it_makes_progress() -> None:
    clock = Clock()
    upload = Upload(clock, 1, 2, 3)
    store = RetryingStore(upload, Counters(), deadline_s=10, time=clock.time)
    assert store.put_file("key", letters, 4) == "abcd"
    assert upload.asked == 4
    upload = Upload(clock, 2, 2, 2, 2, 2)
    store = RetryingStore(upload, Counters(), deadline_s=10, time=clock.time)
    with pytest.raises(StoreError):
        store.put_file("key", letters, 4)
    assert upload.asked == 2, "it breaks at the same place"


def test_the_first_contact_has_a_shorter_limit_until_the_store_has_answered() -> None:
    clock = Clock()
    store = Scripted(DOWN)
    patient = RetryingStore(store, Counters(), deadline_s=60, time=clock.time)
    hurried = patient.with_first_contact_limit(3.0)
    with pytest.raises(StoreError):
        ask(hurried)
    assert clock.now_s < 3.0
    store.answers = [b"data", DOWN]
    assert ask(patient) == b"data"
    before_s = clock.now_s
    with pytest.raises(StoreError):
        ask(hurried)
    assert clock.now_s - before_s > 50.0


# -- listings -----------------------------------------------------------------------------


class Breaking(Scripted):
    """Lists keys two by two, in order; every other page breaks."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(b"")
        self.keys = keys
        self.pages = 0

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        keys = [key for key in self.keys if key > after]
        while keys:
            self.pages += 1
            if self.pages % 2 == 0:
                raise DOWN
            yield [ObjectInfo(key, 1, 0, "v") for key in keys[:2]]
            keys = keys[2:]


def test_a_broken_listing_is_retried_from_where_it_broke() -> None:
    keys = [f"{number:02}" for number in range(20)]
    clock, store = Clock(), Breaking(keys)
    patient = RetryingStore(store, Counters(), deadline_s=1, time=clock.time)
    assert [info.key for page in patient.list_all("") for info in page] == keys
    assert store.pages == 19, "ten pages and nine breaks, and none from the start"
    assert clock.now_s > 0.8, "together longer than one deadline would allow for one page"


class Restarting(Scripted):
    """Always begins at the start, in any order of keys, and breaks after these many pages."""

    def __init__(self, pages: Callable[[int], int]) -> None:
        super().__init__(b"")
        self._pages = pages
        self.attempts = 0

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        self.attempts += 1
        assert self.attempts < 1000, "without end"
        for number in range(self._pages(self.attempts)):
            yield [ObjectInfo(f"{(number * 7) % 10}-{number}", 1, 0, "v")]
        raise DOWN


def test_a_listing_that_repeats_itself_and_breaks_has_one_deadline() -> None:
    clock, store = Clock(), Restarting(lambda _: 5)
    patient = RetryingStore(store, Counters(), deadline_s=60, time=clock.time)
    with pytest.raises(StoreError):
        list(patient.list_all(""))
    assert 50 < clock.now_s < 61


def test_a_restarted_listing_gets_a_new_deadline_while_it_makes_progress() -> None:
    clock, store = Clock(), Restarting(lambda attempt: min(attempt, 100))
    patient = RetryingStore(store, Counters(), deadline_s=2, time=clock.time)
    with pytest.raises(StoreError):
        list(patient.list_all(""))
    assert store.attempts > 100


# -- credentials --------------------------------------------------------------------------


def test_rejected_keys_that_worked_before_are_read_again_once_in_half_a_minute() -> None:
    clock, counters = Clock(), Counters()
    refused = AccessDenied("denied")
    opened: list[Scripted] = []

    def reopen() -> Scripted:
        opened.append(Scripted(b"data", refused))
        return opened[-1]

    patient = RetryingStore(
        Scripted(b"data", refused), counters, deadline_s=60, reopen=reopen, time=clock.time
    )
    assert [ask(patient), ask(patient)] == [b"data", b"data"]
    assert len(opened) == 1
    with pytest.raises(AccessDenied):
        ask(patient)
    assert len(opened) == 1
    clock.now_s += 31
    assert ask(patient) == b"data"
    assert len(opened) == 2
    assert counters.total("store_reopens") == 2
    never_worked = RetryingStore(
        Scripted(refused), counters, deadline_s=60, reopen=reopen, time=clock.time
    )
    with pytest.raises(AccessDenied):
        ask(never_worked)
    assert len(opened) == 2


class Changeable(Scripted):
    """A store whose every verb gives the next answer."""

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        yield [ObjectInfo(self.get(prefix, "", 0, 0, 0).decode(), 1, 0, "v")]

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        return self.get(key, "", 0, 0, 0).decode()

    def delete(self, key: str) -> None:
        self.get(key, "", 0, 0, 0)

    clear_partial = delete


VERBS: dict[str, Callable[[RetryingStore], object]] = {
    "get": ask,
    "list_all": lambda store: list(store.list_all("")),
    "list_level": lambda store: store.list_level(""),
    "put_file": lambda store: store.put_file("key", letters, 4),
    "delete": lambda store: store.delete("key"),
    "clear_partial": lambda store: store.clear_partial("key"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_retried_also_with_new_keys(verb: str) -> None:
    """Down, then refused, then answered by the store that was opened again."""
    fresh = Changeable(b"data")
    refused = AccessDenied("denied", hint="the usual")
    store = Changeable(b"data", DOWN, refused)
    patient = RetryingStore(
        store,
        Counters(),
        deadline_s=60,
        time=Clock().time,
        reopen=lambda: fresh,
        denied_hint="write the new ones to the Secret",
    )
    ask(patient)
    VERBS[verb](patient)
    assert (store.asked, fresh.asked) == (3, 1)
    fresh.answers = [refused]
    with pytest.raises(AccessDenied) as caught:
        VERBS[verb](patient)
    assert caught.value.hint == "write the new ones to the Secret"


def test_a_store_reopened_by_another_thread_is_not_reopened_twice() -> None:
    reopened = Scripted(b"data")

    class Refusing(Scripted):
        def get(self, *asked: Any) -> bytes:
            if self.asked:
                patient._link.store = reopened  # by the other thread, in this moment
            return super().get(*asked)

    patient = RetryingStore(
        Refusing(b"data", AccessDenied("denied")),
        Counters(),
        deadline_s=60,
        time=Clock().time,
        reopen=lambda: pytest.fail("opened twice"),
    )
    assert [ask(patient), ask(patient)] == [b"data", b"data"]
    assert reopened.asked == 1


def test_rotated_keys_are_read_from_their_file(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile whose keys are replaced, and a server that knows only the new ones."""
    (s3.bucket("rotated") / "file").write_bytes(b"data")
    key, secret = ACCESS_KEY, SECRET_KEY
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_PROFILE", "training")

    def write(key: str, secret: str) -> None:
        profile.write_text(
            f"[training]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        )

    write(key, secret)
    counters = Counters()
    store = open_reliable_store(
        parse_source("s3://rotated"), StoreOptions(endpoint=s3.endpoint), counters
    )
    (info,) = next(store.list_all(""))
    write("AKIAOLDOLDOLDOLDOLD0", "an-old-secret-that-was-replaced")
    stale = open_store(parse_source("s3://rotated"), StoreOptions(endpoint=s3.endpoint), Counters())
    store._link.store = stale  # as if the server had dropped the keys it was opened with
    write(key, secret)
    assert bytes(memoryview(store.get("file", info.version, 0, 4, 4))) == b"data"
    assert counters.total("store_reopens") == 1


def test_no_started_fetch_with_old_keys_fails_once_the_keys_are_read_again() -> None:
    class StartedFetch:
        def __init__(self) -> None:
            self.fileno = lambda: -1
            self.advance = lambda: True

        def result(self) -> bytes:
            raise AccessDenied("rotated")

        def retry(self, error: Exception, /) -> bytes:
            raise error

    class Beginning(Scripted):
        def begin(self, key: str, version: str, size_bytes: int) -> StartedFetch:
            return StartedFetch()

    fresh = Scripted(*[b"data"] * 3)
    counters = Counters()
    store = RetryingStore(
        Beginning(b"data"), counters, deadline_s=60, reopen=lambda: fresh, time=Clock().time
    )
    assert store.begin("key", "v", 4) is None, "it has never answered so far"
    store.get("key", "v", 0, 4, 4)
    pending = [store.begin("key", "v", 4) for _ in range(3)]
    for one in pending:
        assert one is not None
        assert bytes(one.retry(AccessDenied("rotated"))) == b"data"
    assert counters.total("store_reopens") == 1


# -- what a server does -------------------------------------------------------------------


@contextmanager
def server_that_answers(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[int]]]:
    """One connection for each request; (endpoint, [how many came])."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    count = [0]

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            count[0] += 1
            with client:
                client.recv(65536)
                answer(client)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", count
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def said(status: str, body: bytes, length: int | None = None) -> bytes:
    head = (
        f'HTTP/1.1 {status}\r\nConnection: close\r\nETag: "v"\r\n'
        "Last-Modified: Sun, 15 Nov 2026 10:00:00 GMT\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


def code(name: str) -> bytes:
    return f"<Error><Code>{name}</Code><Message>no</Message></Error>".encode()


FAULTS: dict[str, tuple[bytes, type[PenstockError], str]] = {
    "500": (said("500 Internal Server Error", code("InternalError")), StoreError, "server_error"),
    "503": (said("503 Slow Down", code("SlowDown")), StoreError, "slow_down"),
    "429": (said("429 Too Many Requests", b""), StoreError, "slow_down"),
    "408": (said("408 Request Timeout", b""), StoreError, "timeout"),
    "cut short": (said("200 OK", b"da", 4), StoreError, "short_body"),
    "nothing": (b"", StoreError, "reset"),
    "another length": (said("200 OK", b"data and more"), StoreError, "wrong_length"),
    "clock": (said("403 Forbidden", code("RequestTimeTooSkewed")), StoreError, "clock_skew"),
    "expired": (said("400 Bad Request", code("ExpiredToken")), AccessDenied, ""),
    "unknown key": (said("403 Forbidden", code("InvalidAccessKeyId")), AccessDenied, ""),
    **{
        f"{status}": (said(f"{status} No", b""), SourceError, "")
        for status in (402, 411, 413, 415, 417, 421, 422, 426, 431, 451)
    },
    "425": (said("425 Too Early", b""), StoreError, "other"),
    "gone": (said("404 Not Found", code("NoSuchKey")), ObjectNotFound, "other"),
    "rewritten": (
        said("412 Precondition Failed", code("PreconditionFailed")),
        ObjectChanged,
        "other",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_answer_is_recognized_and_requested_once(fault: str) -> None:
    answer, kind, word = FAULTS[fault]
    with server_that_answers(lambda client: client.sendall(answer)) as (endpoint, count):
        store = open_store(
            parse_source("s3://bucket/credentials"), StoreOptions(endpoint=endpoint), Counters()
        )
        with pytest.raises(PenstockError) as raised:
            store.get("timeout.bin", "v", 0, 4, 4)
    assert type(raised.value) is kind, raised.value
    assert getattr(raised.value, "kind", "") == word
    assert count[0] == 1, "retried by the library"
    assert fault != "clock" or "clock" in str(raised.value)
    assert raised.value.hint or not raised.value.default_hint


def test_a_body_that_stalls_leaves_time_for_a_retry() -> None:
    release, asked = threading.Event(), [0]

    def answer(client: socket.socket) -> None:
        asked[0] += 1
        if asked[0] == 1:
            client.sendall(said("200 OK", b"da", length=4))
            # Held open without a word, by a thread of its own: the next one must be heard.
            held = client.dup()
            threading.Thread(target=lambda: (release.wait(30), held.close())).start()
        else:
            client.sendall(said("200 OK", b"data"))

    with server_that_answers(answer) as (endpoint, _):
        counters = Counters()
        options = StoreOptions(endpoint=endpoint, deadline_s=6, verify="never")
        store = open_reliable_store(parse_source("s3://bucket"), options, counters)
        assert bytes(store.get("key", "v", 0, 4, 4)) == b"data"
        release.set()
    assert counters.total("store_retries") == 1


def test_a_silent_server_fails_at_the_deadline_and_an_unreachable_one_at_once() -> None:
    release = threading.Event()
    with server_that_answers(lambda client: release.wait(30)) as (silent, _):
        for endpoint, deadline_s, kind in (
            (silent, 0.3, "timeout"),
            ("http://127.0.0.1:1", 60, "refused"),
        ):
            options = StoreOptions(endpoint=endpoint, deadline_s=deadline_s)
            store = open_store(parse_source("s3://bucket"), options, Counters())
            with pytest.raises(StoreError) as raised:
                store.get("key", "v", 0, 4, 4)
            assert raised.value.kind == kind
        release.set()
