"""One experiment, from an empty folder to its figures: what is done, and in which order.

    mount        a fresh cache and a fresh mount, after pages were dropped; filled first if warm
    epochs       the program that trains, measured at its gate between them
    accelerators more of them, one epoch each, from the same state
    proofs       collected on the way

The workload `read` is in `read_epochs`.

Whatever ends it, the arm is stopped. Main thread only, as its workspace.
"""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.bench import measure
from penstock.bench.accelerators import published
from penstock.bench.arms import Arm, Mount, Penstock, Site
from penstock.bench.datasets import Dataset, DatasetManifest
from penstock.bench.experiments import proofs
from penstock.bench.experiments.feeding import Item, ReaderConfig
from penstock.bench.experiments.programs import GatedProgram, JobEpoch, TrainingRun, gated_program
from penstock.bench.experiments.proofs import Proof
from penstock.bench.experiments.read_epochs import ReadRun, make_warm, settle
from penstock.bench.experiments.result_files import EpochRead, Figures, Result, accelerator_of
from penstock.bench.experiments.storeline import StoreCounts, StoreLine
from penstock.bench.peers import make_arm
from penstock.bench.plans.experiments import ExperimentConfig
from penstock.bench.plans.model import JobPlan
from penstock.bench.readers import read_epoch
from penstock.bench.workspace import BenchError
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Snapshot:
    counts: StoreCounts
    statistics: dict[str, Any] | None  # a Penstock mount's own statistics
    usage: measure.Usage  # of the system

    def store_counts_since(self, before: "Snapshot") -> StoreCounts:
        return self.counts.since(before.counts)

    def hits_since(self, before: "Snapshot") -> dict[str, int] | None:
        """Return bytes from the local cache, by tier; None if the system does not count them."""
        if self.statistics is None or before.statistics is None:
            return None
        earlier: dict[str, int] = before.statistics["hit_bytes"]
        now: dict[str, int] = self.statistics["hit_bytes"]
        return {tier: size - earlier.get(tier, 0) for tier, size in now.items()}

    def costs_since(self, before: "Snapshot") -> Figures:
        """Return the costs as an epoch of result.json has them."""
        used = self.usage.since(before.usage)
        return {
            "store": self.store_counts_since(before).to_json(),
            "hit_bytes": self.hits_since(before),
            "cpu_s": {"system": used.cpu_s, "readers": None},
            "memory_bytes": used.memory_bytes,
        }


def take_snapshot(arm: Arm, line: StoreLine) -> Snapshot:
    statistics = arm.statistics() if isinstance(arm, Penstock) else None
    return Snapshot(line.counts(), statistics, arm.usage())


PART = "readers"
_FILLERS = 4  # processes that read everything before a warm epoch
# A later epoch that fetches more than this was not warm: the system did not keep all it had read.
_LITTLE = 0.01
_JOB_SLACK = 0.05

ReportPhase = Callable[[str, float], None]  # a phase, and how much of the experiment is done


class ExperimentRun:
    """The arm and the workload of one experiment. `run` is called once."""

    def __init__(
        self,
        config: ExperimentConfig,
        site: Site,
        manifest: DatasetManifest,
        line: StoreLine,
        result: Result,
        report: ReportPhase,
    ) -> None:
        self._config, self._site, self._manifest = config, site, manifest
        self._line, self._result, self._report = line, result, report
        experiment = config.experiment
        self._plan, self._workload = experiment.arm, experiment.workload
        self._arm: Arm = make_arm(self._plan, site)
        self._is_cold = self._plan.state != "warm"
        # A cache for a share of the data is not seen behind pages that the kernel keeps of all.
        self._drops = self._plan.drops_pages or self._plan.cache_share < 1
        if self._plan.system == "ceiling" or self._workload.kind in ("job", "read"):
            self._drops = False
        self._counts = self._workload.accelerators
        self._epochs_left = self._workload.epochs + len(self._counts) - 1
        self._parts = self._epochs_left + 2
        self._about = ""  # which run a proof is of

    def run(self) -> None:
        self._check()
        result, arm = self._result, self._arm
        result.head["arm"]["version"] = arm.version()
        result.head["arm"]["pages_dropped_before_each_epoch"] = self._drops
        self._report("preparing", 0.0)
        try:
            with self._line.unshaped():
                arm.prepare()
            self._measure()
        finally:
            arm.finish()

    def _check(self) -> None:
        if self._drops and not measure.can_drop_pages():
            raise BenchError(f"{self._plan.name}: pages cannot be dropped", hint="run it as root")
        files, ranks = len(self._site.dataset.entries), max(self._counts)
        if self._manifest.layout != "files" and files < ranks:
            raise UsageError(
                f"{ranks} accelerators need as many shards, and there are {files}",
                hint="make a larger data set, or name fewer accelerators",
            )

    def _measure(self) -> None:
        if self._workload.kind == "read":
            self._read()
            return
        if isinstance(self._workload, JobPlan):
            with self._mounted():
                self._job(self._workload)
                self._last_proofs()
            return
        first, *more = self._counts
        with self._mounted():
            self._epochs(first, self._workload.epochs)
            if not self._is_cold:
                for count in more:
                    self._epochs(count, 1)
            self._last_proofs()
        if self._is_cold:
            for count in more:
                with self._mounted():
                    self._epochs(count, 1)

    def _read(self) -> None:
        run = ReadRun(
            self._arm,
            self._workload,
            self._line,
            seed=self._config.experiment.seed,
            progress=lambda phase: self._report(phase, 0.5),
            prove=self._prove,
            fill=self._fill,
        )
        for sample in run.run():
            self._result.add(sample.figures(), sample.epoch.latencies_s)
            self._result.head["arm"]["command"] = " ".join(self._arm.command)
            self._keep_logs()

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[None]:
        arm = self._arm
        self._report("cold check" if self._is_cold else "mounting", self._done)
        try:
            if self._is_cold and self._plan.system != "ceiling":
                self._prove_cold_start()
            self._report("mounting", self._done)
            arm.start()
            self._result.head["arm"]["command"] = " ".join(arm.command)
            if not self._is_cold:
                self._report("warming", self._done)
                self._fill()
            yield
        finally:
            self._keep_logs()
            arm.stop()

    def _prove_cold_start(self) -> None:
        arm = self._arm
        native = not isinstance(arm, Mount)
        self._prove(proofs.pages_dropped(self._site.dataset, native=native))
        if isinstance(arm, Mount):
            self._prove(proofs.cache_empty(arm.cache))

    def _fill(self) -> None:
        """Make the arm warm before the clock starts, at the full speed of the line: all files are
        in the local cache and, unless pages are dropped anyway, in the page cache."""
        arm, seed = self._arm, self._config.experiment.seed
        if self._plan.system == "ceiling":
            return
        with self._line.unshaped():
            if isinstance(arm, Penstock) and self._plan.cache_share >= 1:
                arm.warm()
            else:
                entries = self._site.dataset.entries
                read_epoch(self._site.workspace, arm.root, entries, readers=_FILLERS, seed=seed)
            if isinstance(arm, Mount):
                settle(arm)
            if self._drops:
                measure.drop_pages()
            elif (proof := make_warm(arm, readers=_FILLERS, seed=seed + 1)) is not None:
                self._prove(proof)

    def _epochs(self, count: int, epochs: int) -> None:
        folder = self._site.workspace.folder / f"readings-{count}"
        folder.mkdir()
        readers = self._reader_config(count, epochs, folder)
        self._about = "" if count == self._counts[0] else f" ({count} accelerators)"
        before = take_snapshot(self._arm, self._line)
        loading_s = self._load() if self._plan.state == "loaded" else 0.0
        self._report("epoch 1", self._done)
        with self._program(readers) as program:
            for epoch in range(epochs):
                program.wait_for(epoch)
                after = take_snapshot(self._arm, self._line)
                read = EpochRead.load(folder, epoch, readers.ranks, 0.0 if epoch else loading_s)
                costs = after.costs_since(before)
                costs["cpu_s"]["readers"] = read.sum("cpu_s")
                figures = self._named(epoch, after.store_counts_since(before)) | read.figures()
                self._result.add(figures | costs, read.latencies())
                self._result.reads.append(read)
                self._prove_epoch(read, before, after, readers)
                self._epochs_left -= 1
                if epoch + 1 < epochs:
                    self._report(f"epoch {epoch + 2}", self._done)
                    if self._drops:
                        measure.drop_pages()
                    before = take_snapshot(self._arm, self._line)
                # A loader's script ends after its last epoch.
                if epoch + 1 < epochs or self._workload.kind != "loader":
                    program.go_on()

    def _named(self, epoch: int, counts: StoreCounts) -> Figures:
        """Return the arm and the state of an epoch, as the glossary has it."""
        plan = self._plan
        if epoch == 0 and self._is_cold:
            state = plan.state
        elif plan.cache_share == 0 and plan.system not in ("native", "ceiling"):
            state = "cold"
        elif plan.cache_share < 1 or counts.get_bytes > _LITTLE * self._site.dataset.size_bytes:
            state = "partial"
        else:
            state = "cached" if self._drops else "warm"
        return {"arm": plan.name, "state": state}

    def _load(self) -> float:
        """Load everything before the first epoch, and return how long that took."""
        arm = self._arm
        assert isinstance(arm, Penstock)
        self._report("loading", self._done)
        start_s = time.monotonic()
        arm.warm()
        return time.monotonic() - start_s

    def _job(self, plan: JobPlan) -> None:
        """Run a real training. It does not stop between epochs, so counters are read while it goes
        on: what the next epoch fetches in that moment counts as the last one's."""
        state = self._arm.reader_environment().get("PENSTOCK_STATE_DIR")
        workspace, epochs = self._site.workspace, plan.epochs
        job = TrainingRun(workspace, plan.manifest, Path(state) if state else None)
        before = take_snapshot(self._arm, self._line)
        job.submit(self._arm.root, epochs, planned=self._is_planned)
        try:
            self._report("epoch 1", self._done)
            for epoch in job.epochs(epochs):
                after = take_snapshot(self._arm, self._line)
                named = self._named(epoch.number, after.store_counts_since(before))
                self._result.add(named | epoch.figures() | after.costs_since(before))
                self._prove_job_epoch(epoch, before, after)
                self._epochs_left -= 1
                self._report(f"epoch {epoch.number + 2}", self._done)
                before = after
            job.wait()
        finally:
            job.end(Path(self._config.logs))

    def _prove_job_epoch(self, epoch: JobEpoch, before: Snapshot, after: Snapshot) -> None:
        """Prove an epoch of a job. A training may leave out a last batch that is not full, and
        images for validation, so it reports itself what it read. Pages cannot be dropped while it
        runs, so only its first epoch is cold."""
        number = epoch.number
        share = epoch.images / self._manifest.samples
        read = Proof(
            f"read-epoch-{number + 1}",
            share > 0,
            f"the job trained on {epoch.images:,} images, {share:.3f} of the samples there are",
        )
        self._prove(read)
        if number == 0 or not self._is_cold:
            self._prove_store(number, after.store_counts_since(before), min(1.0, share))

    def _program(self, readers: ReaderConfig) -> contextlib.AbstractContextManager[GatedProgram]:
        def command(gate: Path) -> list[str]:
            path = Path(readers.output) / "readers.json"
            path.write_text(json.dumps(readers.to_json() | {"gate": str(gate)}))
            module = "loading" if self._workload.kind == "loader" else "feeding"
            script = [sys.executable, "-Pm", f"penstock.bench.experiments.{module}", str(path)]
            if self._workload.kind == "loader" and self._is_planned and not readers.planned:
                return [sys.executable, "-m", "penstock", "run", "--", *script]
            return script

        return gated_program(
            self._site.workspace,
            PART,
            command,
            epochs=readers.epochs,
            extra=self._arm.reader_environment(),
        )

    def _reader_config(self, count: int, epochs: int, folder: Path) -> ReaderConfig:
        workload, dataset = self._workload, self._site.dataset
        accelerator, planned = accelerator_of(workload), self._is_planned
        threads = published(workload.model, workload.accelerator).read_threads
        if workload.kind == "loader":
            threads = workload.workers
            planned = planned and self._plan.planned_by == "sampler"
        return ReaderConfig(
            root=None if self._plan.system == "ceiling" else str(self._arm.root),
            layout=self._manifest.layout,
            items=_items(dataset, self._manifest.samples),
            ranks=count,
            threads=threads,
            batch=accelerator.batch,
            step_s=accelerator.step_s,
            epochs=epochs,
            seed=self._config.experiment.seed,
            planned=planned,
            gate="",
            output=str(folder),
        )

    def _prove_epoch(
        self, read: EpochRead, before: Snapshot, after: Snapshot, readers: ReaderConfig
    ) -> None:
        dataset = self._site.dataset
        epoch, counts = read.epoch, after.store_counts_since(before)
        wanted = (self._manifest.samples, dataset.size_bytes)
        self._prove(proofs.whole(epoch, read.sum("samples"), read.sum("bytes"), wanted))
        if after.statistics is not None and epoch == 0:
            plans: list[dict[str, Any]] = after.statistics["plans"]
            files = len(dataset.entries)
            self._prove(
                proofs.hinted(plans, readers.ranks, files)
                if self._is_planned
                else proofs.unhinted(plans)
            )
        self._prove_store(epoch, counts)

    def _prove_store(self, epoch: int, counts: StoreCounts, read_share: float = 1.0) -> None:
        """`read_share`: a job may read a part of the data, and it is not known how large those
        files are: about as others."""
        size_bytes, share = self._site.dataset.size_bytes, self._plan.cache_share
        number = f"epoch-{epoch + 1}"
        if isinstance(self._arm, Mount) and self._is_cold and (share == 0 or epoch == 0):
            least = 1.0 if read_share == 1 else 1 - _JOB_SLACK
            read_bytes = size_bytes * read_share
            self._prove(proofs.from_the_store(f"cold-{number}", counts, read_bytes, least))
        elif isinstance(self._arm, Mount) and 0 < share < 1:
            name = f"partly-cached-{number}"
            self._prove(proofs.rest_from_the_store(name, counts, size_bytes, self._plan))
        elif not (isinstance(self._arm, Mount) and self._is_cold):
            self._prove(proofs.nothing_from_the_store(f"warm-{number}", counts, size_bytes))

    def _last_proofs(self) -> None:
        arm = self._arm
        if isinstance(arm, Mount) and 0 < self._plan.cache_share < 1:
            self._prove(proofs.cache_within(arm.cache, arm.quota_bytes))

    def _prove(self, proof: Proof) -> None:
        self._result.proofs.append(replace(proof, detail=proof.detail + self._about))

    @property
    def _is_planned(self) -> bool:
        return self._plan.state == "planned"

    @property
    def _done(self) -> float:
        return 1 - (self._epochs_left + 1) / self._parts

    def _keep_logs(self) -> None:
        """Copy the systems' logs, which go with the workspace."""
        folder = self._site.workspace.folder
        for log in [*folder.glob("*.log"), *folder.glob("m/state/logs/*.log")]:
            shutil.copy(log, self._config.logs)


def _items(dataset: Dataset, samples: int) -> tuple[Item, ...]:
    """Return the files with samples shared out evenly; the readers count the real ones."""
    files = len(dataset.entries)
    parts = [samples * place // files for place in range(files + 1)]
    return tuple(
        Item(entry.path, entry.size_bytes, after - before)
        for entry, before, after in zip(dataset.entries, parts, parts[1:], strict=False)
    )
