"""Tree, cache and store against a server that lies: any sequence of lies, changes and damage.

No mount: the machine asks the file system as the kernel does, and refreshes as the server does. The
model knows, for each name, every state it had since the last refresh (bytes, or absent). A read
gives the bytes of one of those, whole, or an error of ours; a listing gives all names, or an error
of ours. What lies and damage may do is cost an error: once they end, everything is right again.

More examples: MODEL_EXAMPLES=N in the environment, as `make soak` does.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from penstock.cache import recent
from penstock.cache.build import build_cache
from penstock.cache.fetch import FetchJob
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Cache
from penstock.catalog.refresh import Mounted, numbered
from penstock.catalog.tree import Tree
from penstock.daemon.catalog_refresher import Refresher
from penstock.errors import CatalogDamaged, PenstockError
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import parse_source
from penstock.vfs import filesystem
from penstock.vfs.filesystem import FileSystem
from penstock.vfs.readahead import Readahead
from tests.support import damage
from tests.support.catalogs import nodes_of
from tests.support.faults import LISTING_LIES, PASSING, Answer, End, Fault, can_happen, spoil
from tests.support.liar import Liar, Lie, Request, Steps, serve_liar
from tests.support.lies import LIES, REPEATS, RIGHT, Memory
from tests.support.waiting import wait_for_input, wait_until

BLOCK = 4096
NAMES = ("a", "d/x", "d/y", "e/f/z", "large")
# More than a page, so that a page can be lost, and enough for a catalog of many pages. They never
# change: only listings ask for them.
STILL = [f"still/{number:04}" for number in range(1100)]
names = st.sampled_from(NAMES)
# Around a block, and of several. None is as long as what "the whole for a part" sends instead.
sizes = st.sampled_from((0, 1, 100, BLOCK, BLOCK + 1, 3 * BLOCK))
seeds = st.integers(0, 2**16)
FEW, MANY = 10, int(os.environ.get("MODEL_EXAMPLES", "20"))
STEPS = 25
STORE_DEADLINE_S, READ_DEADLINE_S = 0.3, 0.6
MOST_BYTES = 96 << 20

# Files that SQLite has mapped are not cut: that would be a signal.
INDEX_DAMAGES = sorted(
    damage.CATALOG_DAMAGES.keys() - {"shared_memory", "log", "half", "text", "empty"}
)
CATALOG_DAMAGES = sorted(damage.CATALOG_DAMAGES.keys() - {"shared_memory", "log"})


def told_by(fault: Fault) -> Lie:
    """What the faulty proxy makes of an answer, where it can; else the truth."""

    def lie(liar: Liar, request: Request, truth: Answer) -> Steps:
        answer = replace(truth, target=request.target)
        if can_happen(fault, answer):
            return spoil(fault, answer, random.Random(request.target), 0.05, liar.elsewhere)
        return (truth.head(), truth.body, End.KEEP)

    return lie


def makes_up_names(name: str) -> bool:
    """Are they well-formed? Nobody can tell those from true ones."""
    lie, of_a_listing, *_ = LIES[name]
    made = getattr(lie, "__qualname__", "").startswith("listing.")
    return made and of_a_listing in (RIGHT, REPEATS)


def of_its_own_pages(lie: Lie) -> Lie:
    """The table's listings number their pages by tokens of their own. What follows a true page is
    true."""

    def steps(liar: Liar, request: Request, truth: Answer) -> Steps:
        if request.query.get("continuation-token", "!-").startswith("!-"):
            return lie(liar, request, truth)
        return (truth.head(), truth.body, End.KEEP)

    return steps


TOLD: dict[str, Lie | None] = {
    "the truth": None,
    **{name: of_its_own_pages(row[0]) for name, row in LIES.items() if not makes_up_names(name)},
    **{fault.value: told_by(fault) for fault in (*LISTING_LIES, *PASSING)},
}


any_lie = st.sampled_from(sorted(TOLD))
# Those that a listing or a body is most easily taken in by come as often as all others together.
lies = st.lists(any_lie, min_size=1, max_size=3)
of_listings = st.sampled_from([fault.value for fault in LISTING_LIES])
lies_of_listings = st.lists(of_listings | any_lie, min_size=1, max_size=3)
of_bodies = st.sampled_from(
    [
        *(fault.value for fault in (Fault.FLIPPED, Fault.TOO_SHORT, Fault.SURPLUS, Fault.GZIPPED)),
        "a bit that is flipped, always the same",
        "another ETag",
        "another range",
        "206 without a range",
        "200 and the whole for a part",
    ]
)
lies_of_bodies = st.lists(of_bodies | any_lie, min_size=1, max_size=3)


class World:
    """A server that lies, and another one that nobody may ask. Serves many examples."""

    def __init__(self, liar: Liar, elsewhere: Liar, folder: Path) -> None:
        self.liar, self.elsewhere, self._folder = liar, elsewhere, folder
        liar.elsewhere = elsewhere.endpoint
        # Refreshes and reads that were right though they were lied to, and those that failed.
        self.counts: Counter[str] = Counter()

    @contextmanager
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            yield Path(place)


class LiesAndFaults(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.liar = world, world.liar
        self.end = ExitStack()
        self.folder = self.end.enter_context(world.folder())
        self.kernel = os.memfd_create("kernel")
        self.end.callback(os.close, self.kernel)
        self.liar.lies.clear()
        self.liar.objects = dict.fromkeys(STILL, b"still")
        self.past: dict[str, list[bytes | None]] = {name: [None] for name in NAMES}
        self.ever: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.held: dict[str, int] = {}
        self.count = 0
        self.memory = Memory()
        options = StoreOptions(endpoint=self.liar.endpoint, deadline_s=STORE_DEADLINE_S)
        self.store = open_store(parse_source("s3://bucket"), options, Counters())
        self.mounts = [Mounted("", self.store)]
        self.tree, self.cache = self.open_tree(), self.open_cache()
        self.serve()

    # -- what is asked, as a server puts it together ------------------------------------------

    def open_tree(self) -> Tree:
        return Tree(self.folder / "catalog.sqlite")

    def open_cache(self) -> Cache:
        return build_cache(
            [TierSpec("SSD", (self.folder / "cache",), 1 << 20)],
            policy="lru",
            block_bytes=BLOCK,
            buffer_bytes=1 << 20,
            large_threads=4,
            counters=Counters(),
            threads=4,
            deadline_s=READ_DEADLINE_S,
            must_open=False,
        )

    def serve(self) -> None:
        numbers = self.tree.with_repair(lambda: numbered(self.tree, self.mounts))
        stores = {number: mounted.store for number, mounted in numbers.items()}
        readahead = Readahead(BLOCK, 2)
        self.files = FileSystem(self.tree, stores, self.cache, readahead, lambda: None)
        session, counters = Session(self.kernel, 1, Counters()), Counters()
        self.refresher = self.tree.with_repair(
            lambda: Refresher(
                self.tree,
                self.mounts,
                self.files,
                session,
                None,
                10_000,
                counters,
                None,
                lambda _seen: None,
            )
        )
        self.tree.on_damage = self.refresher.heal

    def teardown(self) -> None:
        try:
            self.all_is_well_again()
            assert self.memory.most_bytes < MOST_BYTES
            assert self.world.elsewhere.connections == 0
        finally:
            self.cache.close()
            self.tree.close()
            self.end.close()

    # -- upstream -------------------------------------------------------------------------

    @initialize(many=st.dictionaries(names, sizes, min_size=2))
    def start_with_some_files(self, many: dict[str, int]) -> None:
        for name, size in many.items():
            self.put(name, size)
        wait_until(self.refresh, "the store is honest, and cannot be listed")

    @rule(name=names, size=sizes)
    def put(self, name: str, size: int) -> None:
        self.count += 1
        # Every version's bytes are its own, everywhere: a mix of two is neither.
        data = random.Random(f"{name} {self.count}").randbytes(size)
        self.liar.objects = self.liar.objects | {name: data}
        self.past[name].append(data)
        self.ever[name].add(data)

    @rule(name=names)
    def rewrite_as_long_as_before(self, name: str) -> None:
        if name in self.liar.objects:
            self.put(name, len(self.liar.objects[name]))

    @rule(name=names)
    def remove(self, name: str) -> None:
        objects = self.liar.objects
        self.liar.objects = {key: data for key, data in objects.items() if key != name}
        self.past[name].append(None)

    # -- lies -----------------------------------------------------------------------------

    @rule(lies=lies)
    def the_next_answers_are_lies(self, lies: list[str]) -> None:
        self.liar.lies.extend(TOLD[name] for name in lies)

    @rule(
        many=st.dictionaries(names, lies_of_bodies, min_size=2),
        size=st.sampled_from((100, BLOCK, 3 * BLOCK)),
    )
    def what_is_new_is_read_among_lies(self, many: dict[str, list[str]], size: int) -> None:
        self.the_store_is_honest()
        for name in many:
            self.put(name, size)
        if self.refresh():
            for name, lies in many.items():
                self.the_store_is_honest()
                self.the_next_answers_are_lies(lies)
                self.read(name, 0, 4 * BLOCK)

    @rule(lies=lies_of_listings)
    def a_refresh_is_lied_to(self, lies: list[str]) -> None:
        self.the_store_is_honest()
        self.the_next_answers_are_lies(lies)
        self.refresh()
        self.list_all()

    @rule()
    def the_store_is_honest(self) -> None:
        self.liar.lies.clear()

    # -- questions ------------------------------------------------------------------------

    @rule()
    def refresh_and_perhaps_fail(self) -> None:
        self.refresh()

    def refresh(self) -> bool:
        waiting = len(self.liar.lies)
        try:
            self.refresher.refresh_now()
        except PenstockError:
            self.world.counts["refreshes that failed"] += 1
            return False
        for name in NAMES:
            self.past[name] = [self.liar.objects.get(name)]
        self.world.counts["refreshes"] += len(self.liar.lies) < waiting
        return True

    @rule()
    def list_all(self) -> None:
        with suppress(CatalogDamaged):
            self.check_names()

    def check_names(self) -> None:
        found = {path for path in nodes_of(self.tree) if not path.endswith("/")}
        may = {name for name in NAMES if any(state is not None for state in self.past[name])}
        must = {name for name in NAMES if None not in self.past[name]}
        assert must | set(STILL) <= found <= may | set(STILL)

    @rule(name=names, start=st.sampled_from((0, 1, BLOCK - 1, BLOCK)), length=sizes)
    def read(self, name: str, start: int, length: int) -> None:
        states = self.past[name]
        try:
            node = self.files.find(name.encode())
            if node is None:
                assert None in states
                return
            self.held[name] = node.ino
            waiting = len(self.liar.lies)
            found = self.bytes_of(node.ino, start, length)
        except PenstockError:
            self.world.counts["reads that failed"] += 1
            return
        assert found in [data[start : start + length] for data in states if data is not None]
        self.world.counts["reads"] += len(self.liar.lies) < waiting

    @rule(name=names)
    def read_what_is_held_open(self, name: str) -> None:
        if name in self.held:
            with suppress(PenstockError):
                size = self.files.node(self.held[name]).size_bytes or 0
                assert self.bytes_of(self.held[name], 0, size + 1) in self.ever[name]

    def bytes_of(self, ino: int, start: int, length: int) -> bytes:
        """As a session gets them: from what is at hand, or by a job that this thread begins."""
        parts = self.files.read_now(ino, start, length)
        if parts is None:
            answers: list[list[memoryview] | Exception] = []
            job = self.files.read(ino, start, length, answers.append, return_job=True)
            if job is not None:
                do(job)
            (parts,) = wait_until(lambda: answers)
        if isinstance(parts, Exception):
            raise parts
        return b"".join(parts)

    # -- damage ---------------------------------------------------------------------------

    @rule(kind=st.sampled_from(CATALOG_DAMAGES), seed=seeds)
    def the_catalog_is_damaged(self, kind: str, seed: int) -> None:
        with suppress(FileNotFoundError, IndexError):  # it has no page of that kind
            damage.CATALOG_DAMAGES[kind](self.folder / "catalog.sqlite", random.Random(seed))

    @rule(kind=st.sampled_from(INDEX_DAMAGES), seed=seeds)
    def the_index_of_the_cache_is_damaged(self, kind: str, seed: int) -> None:
        with suppress(FileNotFoundError, IndexError):
            damage.CATALOG_DAMAGES[kind](self.folder / "cache/index.sqlite", random.Random(seed))

    @rule(seed=seeds, cut=st.booleans())
    def the_cache_rots(self, seed: int, cut: bool) -> None:
        chance = random.Random(seed)
        for path in damage.cached_files(self.folder / "cache"):
            (damage.cut if cut else damage.flip_bit)(path, chance)

    @rule()
    def the_cache_is_deleted(self) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    @rule()
    def another_server_opens_the_catalog(self) -> None:
        self.tree.close()
        self.tree = self.open_tree()
        self.serve()

    @rule()
    def another_server_opens_the_cache(self) -> None:
        self.cache.close()
        self.cache = self.open_cache()
        self.serve()

    # -- what must hold in the end --------------------------------------------------------

    @rule()
    def all_is_well_again(self) -> None:
        """Without lies another server shows what the store holds, and its cache is used."""
        self.the_store_is_honest()
        self.another_server_opens_the_catalog()
        self.another_server_opens_the_cache()
        # What a lie has left on a connection may cost one more.
        wait_until(self.refresh, "the store is honest, and cannot be listed")
        self.check_names()
        for name in NAMES:
            node = self.files.find(name.encode())
            data = self.liar.objects.get(name)
            assert (node is None) == (data is None)
            if node is not None and data is not None:
                assert node.size_bytes == len(data)
                wait_until(lambda ino=node.ino, data=data: self.is_right_and_stored(ino, data))

    def is_right_and_stored(self, ino: int, data: bytes) -> bool:
        """A busy machine may time out, and what the sweep of a cache removes is stored again."""
        try:
            assert self.bytes_of(ino, 0, 4 * BLOCK) == data
        except PenstockError:
            return False
        self.cache.wait_until_stored()
        self.cache.drop_idle()
        return self.files.cached_bytes(ino) == len(data)


def do(job: FetchJob) -> None:
    begun = job.begin()
    if begun is None:
        job()
        return
    while not begun.advance():
        wait_for_input(begun, STORE_DEADLINE_S / 10)
    begun.write_to_cache()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_reads_and_listings_are_right_or_an_error_for_any_lie_and_any_damage(
    tmp_path: Path, examples: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Failures are remembered for a kernel that asks again page by page: none is here.
    monkeypatch.setattr(recent, "_FAILED_S", 0.0)
    monkeypatch.setattr(filesystem, "_STALE_MS", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with serve_liar() as liar, serve_liar() as elsewhere:
        world = World(liar, elsewhere, tmp_path)
        run_state_machine_as_test(
            lambda: LiesAndFaults(world),
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                # The same examples in every run, unless a seed asks for others.
                derandomize=request.config.getoption("--hypothesis-seed", None) is None,
                # What fails is told at once: time decides, so shrinking would mislead.
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
        right = world.counts["refreshes"] + world.counts["reads"]
        wrong = world.counts["refreshes that failed"] + world.counts["reads that failed"]
        assert right, "no lie was seen through"
        assert wrong, "no lie was refused"
