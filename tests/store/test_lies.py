"""What a store can do to us: one table of lies, and what is promised for each of them.

Each lie is told to a listing, to a GET of a whole object and to one of a part. The outcome is the
truth or a named error, in little memory, and never a word to another host.
"""

import itertools
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.catalog.listing import list_in_parallel
from penstock.catalog.refresh import Mounted, refresh
from penstock.catalog.tree import Tree
from penstock.errors import ObjectChanged, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.etags import PART_BYTES
from penstock.store.s3listing import S3Listing
from penstock.store.s3objects import Limits, open_web_objects
from penstock.store.source import SourcePrefix, parse_source
from tests.support.catalogs import nodes_of
from tests.support.certificates import certify
from tests.support.faults import Answer, End
from tests.support.liar import (
    Liar,
    Lie,
    Request,
    Steps,
    entry,
    first_keys,
    md5,
    page,
    serve_liar,
)
from tests.support.lies import (
    CROWD,
    DATA,
    DEADLINE_S,
    ETAG,
    LIES,
    MISMATCH,
    MOST_BYTES,
    OBJECTS,
    PIECE,
    RIGHT,
    TIMEOUT,
    TOKEN,
    TRUTH,
    Memory,
    ask_begun,
    ask_get,
    ask_list,
    ask_part,
    dav,
    dav_file,
    flipped,
    listing,
    redirect,
    spoilt,
    truly,
    whole_for_a_part,
)
from tests.support.waiting import PATIENCE_S, wait_until

# -- the test of each ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY-OF-THE-CALLER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-OF-THE-CALLER")
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def _servers() -> Iterator[tuple[Liar, Liar]]:
    with serve_liar() as liar, serve_liar() as elsewhere:
        liar.objects, liar.elsewhere = OBJECTS, elsewhere.endpoint
        yield liar, elsewhere


@pytest.fixture
def liar(_servers: tuple[Liar, Liar]) -> Iterator[Liar]:
    """It holds OBJECTS; what else it is told to answer ends with the test. Nobody is ever asked
    elsewhere."""
    liar, elsewhere = _servers
    yield liar
    liar.lie, liar.page_keys = None, 1000
    liar.lies.clear()
    liar.asked.clear()
    assert elsewhere.connections == 0


def opened(liar: Liar, **options: Any) -> Store:
    options = {"endpoint": liar.endpoint, "deadline_s": PATIENCE_S} | options
    return open_store(parse_source("s3://bucket"), StoreOptions(**options), Counters())


def outcome(question: Callable[[Store], object], store: Store) -> object:
    try:
        return question(store)
    except PenstockError as error:
        return error


@pytest.mark.parametrize("question", [ask_list, ask_get, ask_part])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_detected_or_gives_the_promised_error(
    liar: Liar, name: str, question: Callable[[Store], object]
) -> None:
    lie, *promised = LIES[name]
    expected = promised[[ask_list, ask_get, ask_part].index(question)]
    # Short only for lies that keep us waiting: a busy machine may be slower than that.
    waits = expected is TIMEOUT
    store, memory = opened(liar, **({"deadline_s": DEADLINE_S} if waits else {})), Memory()
    liar.lie = lie
    found = outcome(question, store)
    if expected is RIGHT:
        assert found == TRUTH[question]
    else:
        assert isinstance(found, expected.error), found
        output = f"{found} {getattr(found, 'kind', '')}"
        assert re.search(expected.words, output), output
        assert found.hint or isinstance(found, ObjectChanged | ObjectNotFound)
        assert TOKEN not in output
        assert len(output) < 600, "a line is not a page"
    assert memory.most_bytes < MOST_BYTES
    # It is the answer that was wrong: the next one is believed again. A connection on which
    # something came that was not asked for may cost one more.
    liar.lie = None
    outcome(question, store)
    if waits:
        wait_until(lambda: outcome(question, store) == TRUTH[question])
    else:
        assert question(store) == TRUTH[question]


INVENTED = {"the same token, and new keys", "tokens in a circle, and new keys"}
ASKED = st.sampled_from([ask_list, ask_get, ask_part, ask_begun])
TOLD = st.lists(st.sampled_from([None, *LIES]), max_size=4)


@given(st.lists(st.tuples(ASKED, TOLD), min_size=1, max_size=6))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_after_any_sequence_of_lies_bytes_are_right_or_an_error_is_raised(
    liar: Liar, asked: list[tuple[Callable[[Store], object], list[str | None]]]
) -> None:
    store, memory = opened(liar, deadline_s=0.2), Memory()
    for question, names in asked:
        liar.lies.clear()
        liar.lies.extend(None if name is None else LIES[name][0] for name in names)
        found = outcome(question, store)
        if question is ask_list and INVENTED & set(names):
            continue  # nobody can tell names that are made up
        assert isinstance(found, PenstockError) or found == TRUTH[question]
    liar.lies.clear()
    for question, expected in TRUTH.items():
        # A busy machine may miss the deadline, too.
        wait_until(lambda ask=question, right=expected: outcome(ask, store) == right, question)
    assert memory.most_bytes < MOST_BYTES
    assert TOKEN in liar.requests[-1].headers["x-amz-security-token"]


def test_the_fields_of_a_page_are_found_among_other_elements(liar: Liar) -> None:
    def one_key(number: int) -> str:
        token = f"!-{number + 1}" if number < len(OBJECTS) - 1 else None
        return page(truly()[number : number + 1], token).replace("<Name>", f"{CROWD}<Name>")

    liar.lie = listing(one_key)
    assert ask_list(opened(liar)) == TRUTH[ask_list]


# -- levels -------------------------------------------------------------------------------


def lost_end(*, of_levels_only: bool) -> Lie:
    """Of each listing the first page, which says that it is the last."""

    def lie(_liar: Liar, request: Request, truth: Answer) -> Steps:
        query = request.query
        is_level = "delimiter" in query or not of_levels_only
        if request.is_listing and is_level and "max-keys" not in query:
            body = re.sub(b"<NextC.*Token>", b"", truth.body.replace(b">true<", b">false<"))
            truth = replace(truth, body=body)
        return (truth.head(), truth.body, End.KEEP)

    return lie


FOLDERS = {f"{number:04}/file": b"x" for number in range(1200)}
FILES = {f"file-{number:04}": b"x" for number in range(1200)} | {"a/x": b"x", "b/y": b"y"}


@pytest.mark.parametrize("objects", [FOLDERS, FILES], ids=["folders", "files"])
def test_a_level_that_loses_its_end_loses_no_name(liar: Liar, objects: dict[str, bytes]) -> None:
    with serve_liar() as liar:
        liar.objects = objects
        store = opened(liar, deadline_s=20)
        level = store.list_level("")
        assert level is not None
        assert len(level.objects) + len(level.prefixes) >= 1200
        assert len(liar.asked) == 3, "two pages, and whether it is over"
        liar.lie = lost_end(of_levels_only=True)
        assert store.list_level("") is None
        found = {info.key for page in list_in_parallel(store) for info in page}
        assert {key for key in found if key[-1] != "/"} == set(objects)
        liar.lie = lost_end(of_levels_only=False)
        with pytest.raises(SourceError, match="more lies behind"):
            list(list_in_parallel(store))


def test_a_level_of_one_page_costs_no_check_of_its_end(liar: Liar) -> None:
    assert opened(liar).list_level("") is not None
    assert len(liar.asked) == 1


# -- listings that go on ------------------------------------------------------------------


def lost_pages(_liar: Liar, request: Request, truth: Answer) -> Steps:
    """Every page claims to be the last; a question for two keys is answered truly."""
    body = truth.body
    if request.is_listing and "max-keys" not in request.query:
        body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)
        body = body.replace(b"<IsTruncated>true", b"<IsTruncated>false")
    lie = replace(truth, body=body)
    return lie.head(), lie.body, End.KEEP


def test_a_listing_that_loses_its_end_repeatedly_loses_no_name(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that were written lately: an old one behind the end is refused at once."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    monkeypatch.setattr(entry, "__defaults__", (*(entry.__defaults__ or ())[:-1], now))
    monkeypatch.setattr(liar, "objects", {f"{number:05}": b"x" for number in range(4500)})
    liar.lie = lost_pages
    found = [info.key for infos in opened(liar).list_all("") for info in infos]
    assert set(found) == liar.objects.keys()


def ten_million(number: int) -> str:
    keys = [entry(f"{number:05}/{one:04}") for one in range(1000)]
    return page(keys, f"!-{number + 1}" if number < 10_000 else None)


def test_a_listing_of_ten_million_keys_is_paged_and_can_be_stopped(liar: Liar) -> None:
    liar.lie = listing(ten_million)
    memory = Memory()
    pages = opened(liar, deadline_s=60).list_all("")
    assert first_keys(pages, 50_000)[-1] == "00049/0999"
    assert len(liar.asked) == 50
    pages.close()  # type: ignore[attr-defined]  # a generator
    assert memory.most_bytes < MOST_BYTES


def test_a_listing_of_ten_million_keys_ends_at_the_limit_of_a_mount(
    liar: Liar, tmp_path: Path
) -> None:
    """Of a bound of 30,000, not of ten million: each key takes 60 us from the server to the disk,
    and what is held does not grow with them."""
    liar.lie = listing(ten_million)
    memory, store = Memory(), opened(liar, deadline_s=60)
    with closing(Tree(tmp_path / "catalog.sqlite")) as tree:
        with pytest.raises(SourceError, match="30,000") as refused:
            refresh(tree, [Mounted("", store)], lambda *_: None, most_files=30_000)
        assert "--max-files" in str(refused.value.hint)
        assert tree.listed_at() is None
    assert len(liar.asked) < 100
    assert memory.most_bytes < MOST_BYTES


def test_a_clock_that_goes_back_between_two_listings_changes_no_file(
    liar: Liar, tmp_path: Path
) -> None:
    whens = ["2024-01-01T00:00:00Z", "1971-01-01T00:00:00Z", "2024-01-01T00:00:00Z"]
    store = opened(liar)
    with closing(Tree(tmp_path / "catalog.sqlite")) as tree:
        seen: list[dict[str, tuple[int, str]]] = []
        for when in whens:
            liar.lie = listing(
                lambda _, when=when: page(
                    entry(key, len(data), md5(data), when) for key, data in OBJECTS.items()
                )
            )
            refresh(tree, [Mounted("", store)], lambda *_: None, in_use=True)
            seen.append({path: (node.ino, node.version) for path, node in nodes_of(tree).items()})
        assert seen[0] == seen[1] == seen[2]
        assert len(seen[0]) == 4  # a folder, too
    assert ask_get(store) == DATA


@pytest.mark.parametrize(
    "order", [["b", "a"], ["a", "a"], ["a", "b", "next page", "b", "c"], ["\U00010000", "\ufffd"]]
)
def test_a_listing_out_of_its_promised_order_is_rejected(liar: Liar, order: list[str]) -> None:
    first, _, second = " ".join(order).partition(" next page ")
    pages = [[entry(key) for key in part.split()] for part in (first, second)]
    liar.lie = listing(lambda number: page(pages[number], "!-1" if second and not number else None))
    objects = open_web_objects(liar.endpoint, Limits(5, 5, 5), None)
    assert objects is not None
    for in_order in (False, True):
        lister = S3Listing(objects, SourcePrefix("s3://b", ""), Counters(), in_order=in_order)
        if in_order:
            with pytest.raises(SourceError, match="not in order"):
                list(lister.list_all("", ""))
        else:
            assert first_keys(lister.list_all("", ""), 10) == f"{first} {second}".split()


def test_one_whole_answer_to_a_range_request_does_not_change_later_requests(
    liar: Liar,
) -> None:
    store = opened(liar)
    liar.lies.append(whole_for_a_part)
    for _ in range(3):
        assert ask_part(store) == TRUTH[ask_part]
    assert [request.headers["range"] for request in liar.requests[-3:]] == ["bytes=100-1099"] * 3
    liar.lie = whole_for_a_part
    for _ in range(3):
        assert ask_part(store) == TRUTH[ask_part]


def test_a_wrong_body_is_never_returned_however_often_it_comes(liar: Liar) -> None:
    store = opened(liar, verify="always")
    liar.lie = spoilt(flipped)
    for question in (ask_get, ask_begun, ask_get, ask_begun, ask_get):
        with pytest.raises(StoreError, match=f"the ETag is {ETAG}"):
            question(store)
    liar.lie = None
    assert ask_get(store) == DATA


# Bodies of a web server are not compared with its ETags, unless the user says so.
ON_THE_WEB = [name for name, row in LIES.items() if {row[1], row[2]} & {RIGHT, MISMATCH} == set()]


@pytest.mark.parametrize("name", ON_THE_WEB)
def test_a_lying_web_server_is_rejected_within_the_same_bounds(liar: Liar, name: str) -> None:
    options = StoreOptions(deadline_s=DEADLINE_S)
    store = open_store(parse_source(f"{liar.endpoint}/set"), options, Counters())
    memory = Memory()
    liar.lie = LIES[name][0]
    found = outcome(ask_list, store)
    assert isinstance(found, PenstockError), found
    assert found.hint
    with pytest.raises(PenstockError):
        ask_get(store)
    assert memory.most_bytes < MOST_BYTES


# -- TLS ----------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """What the server proves itself by: one that is trusted, and one that is not."""
    contexts: list[ssl.SSLContext] = []
    for name in ("trusted", "strange"):
        (tmp_path / name).mkdir()
        certify(tmp_path / name)
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        contexts[-1].load_cert_chain(tmp_path / name / "server.pem", tmp_path / name / "server.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted/ca.pem"))
    return contexts


@pytest.mark.parametrize("question", [ask_list, ask_get, ask_part, ask_begun])
def test_one_untrusted_certificate_is_an_error_and_does_not_affect_the_next(
    certificates: list[ssl.SSLContext], question: Callable[[Store], object]
) -> None:
    good, bad = certificates
    shown = deque([bad])
    with (
        serve_liar(lambda: shown.popleft() if shown else good) as liar,
        serve_liar(lambda: good) as elsewhere,
    ):
        liar.objects, liar.elsewhere = OBJECTS, elsewhere.endpoint
        store = opened(liar, verify="always", deadline_s=5)
        with pytest.raises(StoreError, match="certificate is not trusted") as refused:
            question(store)
        assert "SSL_CERT_FILE" in str(refused.value.hint)
        assert not liar.requests, "nobody is asked whom we do not know"
        assert question(store) == TRUTH[question]
        liar.lie = spoilt(flipped)
        with pytest.raises(StoreError, match="the ETag is"):
            ask_get(store)
        liar.lie = redirect(307, "{elsewhere}{target}")
        with pytest.raises(SourceError, match="redirects to"):
            ask_get(store)
        assert elsewhere.connections == 0


def test_a_web_server_with_one_untrusted_certificate_is_listed_by_webdav_later(
    certificates: list[ssl.SSLContext],
) -> None:
    good, bad = certificates
    shown = deque([bad, bad])
    with serve_liar(lambda: shown.popleft() if shown else good) as liar:
        liar.lie = dav(lambda: [dav_file("a")])
        store = open_store(parse_source(liar.endpoint), StoreOptions(deadline_s=5), Counters())
        for _ in range(2):
            with pytest.raises(StoreError, match="certificate is not trusted"):
                ask_list(store)
        assert ask_list(store) == {"a": 4}
        assert [request.method for request in liar.requests] == ["PROPFIND"]


# -- listings of web servers --------------------------------------------------------------

HTML_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<title>Index of /</title>"


def html(links: Callable[[], Iterator[str]]) -> Lie:
    """A server without WebDAV, whose every folder has these links."""

    def lie(_liar: Liar, request: Request, truth: Answer) -> Steps:
        if request.method == "PROPFIND":
            return (replace(truth, status=501, body=b"").head(), End.KEEP)
        return itertools.chain([HTML_HEAD], (one.encode() for one in links()), [End.CLOSE])

    return lie


def some_links(count: int, name: Callable[[int], str]) -> Callable[[], Iterator[str]]:
    return lambda: (f"<a href='{name(n)}'>x</a> 01-May-2024 10:00 4\n" for n in range(count))


TOO_LARGE = "a folder of more than"
WEB_LIES: dict[str, tuple[Lie, str]] = {
    "hrefs of a megabyte": (dav(lambda: (dav_file("x" * 10**6) for _ in range(200))), "too long"),
    "hrefs of 60 KB": (dav(lambda: (dav_file("x" * 60_000) for _ in range(200))), "too long"),
    "hrefs of 8 KB": (
        dav(lambda: (dav_file(f"{n:05}{'x' * 7900}") for n in range(8_000))), TOO_LARGE,
    ),
    "properties of a gigabyte": (
        dav(lambda: itertools.chain(
            ["<response>"], (f"<p{n}>{PIECE[:9000].decode()}</p{n}>" for n in range(10_000)))),
        "too long",
    ),
    "a page of links of 8 KB": (
        html(some_links(8_000, lambda n: f"{n:05}{'x' * 7900}")),
        "an index without end|a folder of more than",
    ),
    "a page of a link of a megabyte": (html(some_links(8, lambda _: "x" * 10**6)), "too long|end"),
    "a page of more than 32 MiB": (html(some_links(4000, lambda _: "x/y" * 3_000)), "too long|end"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEB_LIES)
def test_an_endless_web_listing_is_rejected_in_little_memory(liar: Liar, name: str) -> None:
    store = open_store(parse_source(liar.endpoint), StoreOptions(deadline_s=60), Counters())
    memory = Memory()
    liar.lie, says = WEB_LIES[name]
    with pytest.raises(SourceError, match=says) as refused:
        ask_list(store)
    assert "--manifest" in str(refused.value.hint)
    assert len(str(refused.value)) < 600
    assert memory.most_bytes < MOST_BYTES


def test_many_large_folders_at_once_take_little_memory(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held at once, these 16 take 70 MB."""
    monkeypatch.setattr("penstock.store.weblisting._MAX_ENTRIES", 4000)
    top = html(some_links(16, "{:02}/".format))
    deep = html(some_links(3000, "{:06}".format))
    liar.lie = lambda liar, request, truth: (top if request.path == "/" else deep)(
        liar, request, truth
    )
    store = open_store(parse_source(liar.endpoint), StoreOptions(deadline_s=60), Counters())
    memory = Memory()
    assert sum(len(found) for found in store.list_all("")) == 16 + 16 * 3000
    assert memory.most_bytes < MOST_BYTES // 2


# -- writing ------------------------------------------------------------------------------


def uploads(page_of: int, aborted: list[str]) -> Lie:
    """There are seven of `new` and three of `newer`; pages of so many, each entry of 1.5 KB."""
    begun = [
        (key, f"{key}-{number}")
        for key, most in (("new", 7), ("newer", 3))
        for number in range(most)
    ]

    def lie(_liar: Liar, request: Request, truth: Answer) -> Steps:
        query = request.query
        if request.method == "DELETE":
            aborted.append(query["uploadId"])
            return (replace(truth, status=204, body=b"").head(), End.KEEP)
        behind = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        rest = [one for one in begun if one > behind]
        some = rest[:page_of]
        more = len(rest) > page_of
        entries = "".join(
            f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId><Owner>{'x' * 1500}</Owner>"
            "</Upload>"
            for key, upload in some
        )
        markers = f"<NextKeyMarker>{some[-1][0]}</NextKeyMarker><NextUploadIdMarker>{some[-1][1]}"
        body = (
            f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{markers}</NextUploadIdMarker>{entries}</ListMultipartUploadsResult>"
        ).encode()
        return (replace(truth, status=200, body=body).head(), body, End.KEEP)

    return lie


@pytest.mark.parametrize("page_of", [1, 2, 7, 100])
def test_all_abandoned_uploads_of_a_key_are_aborted_however_they_are_listed(
    liar: Liar, page_of: int
) -> None:
    aborted: list[str] = []
    liar.lie = uploads(page_of, aborted)
    opened(liar).clear_partial("new")
    assert sorted(aborted) == [f"new-{number}" for number in range(7)]


def test_an_endless_list_of_uploads_is_given_up(liar: Liar) -> None:
    again = (
        b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>new"
        b"</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker></ListMultipartUploadsResult>"
    )
    liar.lie = spoilt(lambda truth: replace(truth, status=200, body=again))
    with pytest.raises(SourceError, match="repeats itself"):
        opened(liar).clear_partial("new")
    assert len(liar.asked) < 5


def ask_put(store: Store) -> object:
    return store.put_file("new", lambda: iter([b"new"]), 3)


def ask_put_parts(store: Store) -> object:
    return store.put_file("new", lambda: iter([bytes(PART_BYTES), b"new"]), PART_BYTES + 3)


def ask_delete(store: Store) -> object:
    return store.delete("new")


@pytest.mark.parametrize("question", [ask_put, ask_put_parts, ask_delete])
@pytest.mark.parametrize("name", ON_THE_WEB)
def test_a_writer_to_a_lying_store_gets_an_error(
    liar: Liar, name: str, question: Callable[[Store], object]
) -> None:
    store, memory = opened(liar, deadline_s=DEADLINE_S), Memory()
    liar.lie = LIES[name][0]
    found = outcome(question, store)
    # Of what is not there nothing has to be deleted, which a 404 says.
    assert isinstance(found, PenstockError) or (found is None and "404" in name)
    assert memory.most_bytes < MOST_BYTES
