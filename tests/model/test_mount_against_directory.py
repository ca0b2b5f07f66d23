"""The mount against a dictionary: random trees, reads, changes upstream, faults, restarts.

The model knows, for each name, every state it had since the last refresh (bytes, or absent). What
a reader may see is one of those, whole; after a refresh, exactly what the bucket holds. Run it with
other choices: `pytest tests/model --hypothesis-seed=N`; with more examples, as `make soak` does:
MODEL_EXAMPLES=N in the environment.
"""

import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.daemon.mount_registry import find_note
from tests.model.world import BusError, World, read_mapped
from tests.support import damage
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import forget
from tests.support.mounts import MODES, Mounter
from tests.support.s3 import S3
from tests.support.trees import read_tree
from tests.support.waiting import wait_until

KIB = 1024
# Some of these names are a file at one time and a folder at another. Sizes lie around the block
# (128 KiB) and beyond it.
NAMES = ("a", "b", "d", "d/x", "d/y", "d/e/z", "f", "f/g", "large")
names = st.sampled_from(NAMES)
sizes = st.sampled_from((0, 1, 100, 4096, 5000, 128 * KIB, 128 * KIB + 1, 300 * KIB, 1000 * KIB))
seeds = st.integers(0, 2**16)
places = st.integers(0, 2)  # for files held open
FEW, MANY = 4, int(os.environ.get("MODEL_EXAMPLES", "20"))


class MountAgainstDirectory(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.folder = world.next_folder()
        self.bucket = world.bucket / self.folder
        self.now: dict[str, bytes] = {}
        # Every state since the last refresh, oldest first; None: it was not there.
        self.past: dict[str, list[bytes | None]] = {name: [None] for name in NAMES}
        self.ever: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.count = 0
        self.held: dict[int, tuple[str, int]] = {}
        self.away = False

    def teardown(self) -> None:
        self.world.proxy.calm()
        for place in list(self.held):
            self.let_go(place)
        self.bucket.clear()

    def path(self, name: str) -> Path:
        return self.world.mount.path / self.folder / name

    # -- upstream -------------------------------------------------------------------------

    @initialize(many=st.dictionaries(names, sizes, min_size=2, max_size=6))
    def start_with_some_files(self, many: dict[str, int]) -> None:
        for name, size in many.items():
            self.put(name, size)
        self.refresh()
        if self.world.examples == 1:
            self.the_server_is_killed()  # a small run may draw none

    @rule(name=names, size=sizes)
    def put(self, name: str, size: int) -> None:
        """Adds or rewrites; a file in the way becomes a folder, a folder in the way a file."""
        for other in list(self.now):
            if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
                self.remove(other)
        self.count += 1
        # Every version's bytes are its own, everywhere: a mix of two is neither.
        data = random.Random(f"{name} {self.count}").randbytes(size)
        (self.bucket / name).write_bytes(data)
        self.now[name] = data
        self.past[name].append(data)
        self.ever[name].add(data)

    @rule(name=names)
    def rewrite_as_long_as_before(self, name: str) -> None:
        if name in self.now:
            self.put(name, len(self.now[name]))

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.now:
            (self.bucket / name).unlink()
            del self.now[name]
            self.past[name].append(None)

    def refresh(self) -> None:
        self.world.ask("refresh")
        for name in NAMES:
            self.past[name] = [self.now.get(name)]

    @rule()
    def compare_after_a_refresh(self) -> None:
        self.refresh()
        assert read_tree(self.world.mount.path / self.folder) == self.now
        for name, data in self.now.items():
            assert self.path(name).stat().st_size == len(data)

    # -- reads by name --------------------------------------------------------------------

    @rule(name=names)
    def read_whole(self, name: str) -> None:
        with self.errors_that_are_promised(name):
            assert self.path(name).read_bytes() in self.past[name]

    @rule(name=names, share=st.floats(0, 1), length=sizes)
    def read_range(self, name: str, share: float, length: int) -> None:
        with self.errors_that_are_promised(name), open(self.path(name), "rb", 0) as file:
            start = int(share * os.fstat(file.fileno()).st_size)
            found = os.pread(file.fileno(), length, start)
            versions = [data for data in self.past[name] if data is not None]
            assert found in [data[start : start + length] for data in versions]

    @rule(name=names)
    def read_mapped(self, name: str) -> None:
        with self.errors_that_are_promised(name):
            assert read_mapped(self.path(name)) in self.past[name]

    @rule(name=names)
    def stat(self, name: str) -> None:
        with self.errors_that_are_promised(name):
            path = self.path(name)
            if not path.is_dir():
                sizes = {len(data) for data in self.past[name] if data is not None}
                assert path.stat().st_size in sizes
            else:
                assert self.was_a_folder(name)

    @rule(folder=st.sampled_from(("", "d", "d/e", "f")))
    def list_directory(self, folder: str) -> None:
        start = f"{folder}/" if folder else ""
        below = {name for name in NAMES if name.startswith(start) and name != folder}
        child = {name: name.removeprefix(start).split("/")[0] for name in below}
        may = {child[name] for name in below if any(s is not None for s in self.past[name])}
        must = {child[name] for name in below if None not in self.past[name]}
        try:
            found = set(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            found = set()
        assert must <= found <= may

    # -- files held open ------------------------------------------------------------------

    @rule(place=places, name=names)
    def hold_open(self, place: int, name: str) -> None:
        self.let_go(place)
        with self.errors_that_are_promised(name):
            if not self.path(name).is_dir():
                descriptor = os.open(self.path(name), os.O_RDONLY)
                self.held[place] = name, descriptor

    @rule(place=places)
    def read_what_is_held_open(self, place: int) -> None:
        if place not in self.held:
            return
        name, descriptor = self.held[place]
        size = os.fstat(descriptor).st_size
        try:
            found = os.pread(descriptor, size + 1, 0)
        except OSError as error:
            # Only a version that the bucket has no more may be lost to who holds it.
            versions = [data for data in self.ever[name] if len(data) == size]
            if error.errno != errno.ESTALE or versions == [self.now.get(name)]:
                raise
        else:
            assert len(found) == size
            assert found in self.ever[name]

    @rule(place=places)
    def let_go(self, place: int) -> None:
        if place in self.held:
            os.close(self.held.pop(place)[1])

    # -- trouble --------------------------------------------------------------------------

    @rule(seed=seeds)
    def the_store_fails_now_and_then(self, seed: int) -> None:
        self.world.start_faults(seed)

    @rule()
    def the_store_is_well(self) -> None:
        self.world.proxy.calm()

    @rule(name=names)
    def the_store_is_away_while_one_reads(self, name: str) -> None:
        if not self.world.outages_left:
            return
        self.world.outages_left -= 1
        self.the_kernel_forgets(("pages",))
        self.world.proxy.down()
        self.away = True
        try:
            self.read_whole(name)
            # What failed a moment ago may be told again, without asking the store.
            self.world.proxy.up()
            self.world.wait_while_eio(self.path(name))
        finally:
            self.away = False
            self.world.proxy.up()

    @rule(what=st.sampled_from((("pages",), ("names",), ("pages", "names"))))
    def the_kernel_forgets(self, what: tuple[str, ...]) -> None:
        if "pages" in what:
            held = [descriptor for _, descriptor in self.held.values()]
            self.world.drop_kernel_pages([self.path(name) for name in NAMES], held)
        if "names" in what:
            forget(self.world.mount.path)

    @rule()
    def the_server_is_killed(self) -> None:
        self.world.kill_server()

    # In passthrough the kernel reads a file by itself once it was found whole (semantics.md): what
    # rots after that is out of our hands.
    @precondition(lambda self: self.world.mode == "pagecache")
    @rule(seed=seeds, cut=st.booleans())
    def the_cache_rots(self, seed: int, cut: bool) -> None:
        self.world.damage_the_cache(damage.cut if cut else damage.flip_bit, seed)
        self.the_kernel_forgets(("pages",))

    @rule()
    def the_cache_is_deleted(self) -> None:
        shutil.rmtree(self.world.cache, ignore_errors=True)

    # -- what is promised -----------------------------------------------------------------

    @contextmanager
    def errors_that_are_promised(self, name: str) -> Iterator[None]:
        states = self.past[name]
        outdated = any(state is not None and state != self.now.get(name) for state in states)
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            assert None in states
        except IsADirectoryError:
            assert self.was_a_folder(name)
        except BusError:
            assert outdated or self.away
        except OSError as error:
            if error.errno == errno.EIO:
                assert self.away
            elif error.errno == errno.ESTALE:
                assert outdated
            else:
                raise

    def was_a_folder(self, name: str) -> bool:
        below = [states for other, states in self.past.items() if other.startswith(f"{name}/")]
        return any(state is not None for states in below for state in states)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_the_mount_matches_a_model_directory(
    s3: S3,
    mounter: Mounter,
    tmp_path: Path,
    mode: str,
    examples: int,
    request: pytest.FixtureRequest,
) -> None:
    bucket = s3.bucket(f"model-{mode}-{examples}")
    (bucket / "always").write_bytes(b"there")
    with FaultyProxy(s3.endpoint, seed=1) as proxy:
        mount = mounter(
            bucket.source,
            "--endpoint",
            proxy.endpoint,
            "--mode",
            mode,
            "--block-size",
            "128KiB",
            "--refresh",
            "never",
            "--deadline",
            "5s",
        )
        world = World(bucket, mount, proxy, tmp_path / "cache", mode)
        run_state_machine_as_test(
            lambda: MountAgainstDirectory(world),
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                deadline=None,
                database=None,
                # The same examples in every run, unless a seed asks for others.
                derandomize=request.config.getoption("--hypothesis-seed", None) is None,
                # A real mount: what fails is told at once; shrinking would take many minutes.
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert world.killed
        # The last one may have been killed just now.
        wait_until(
            lambda: find_note(mount.path).restarts == len(world.killed), "each death was counted"
        )
        mount.umount()
