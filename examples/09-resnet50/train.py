"""Trains ResNet-50 on images in class folders: `python train.py FOLDER`.

FOLDER has train/ and val/, or the class folders themselves (then nothing is validated). One process
for each GPU: alone, under `torchrun --nproc-per-node N`, or under `mpirun -np N`.
"""

import argparse
import math
import os
import platform
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch
import torch.nn.functional as F
from batches import BrokenImage, can_decode_on_gpu
from data import NoImages
from figures import Epoch, line, write_dawnbench
from ranks import NotPossible, Ranks, join, leave, total
from sources import Source, on_device, training, validation
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model import MODELS, make_model, weights_and_rest

_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=Path, nargs="?", help="train/ and val/, or class folders")
    add("--model", choices=MODELS, default="resnet50")
    add("--width", type=int, default=64, help="channels of the first layer; 16 for a CPU")
    add("--epochs", type=int, default=18)
    add("--batch", type=int, default=256, help="images per step and process")
    add(
        "--lr",
        type=float,
        default=0.5,
        help="per 256 images in a step of all processes",
    )
    add("--warmup-epochs", type=float, default=2)
    add("--weight-decay", type=float, default=5e-5)
    add("--label-smoothing", type=float, default=0.1)
    add("--image-size", type=int, default=224)
    add(
        "--smallest-crop",
        type=float,
        default=0.25,
        help="share of the area; 0.08 for 90 epochs",
    )
    add("--no-augment", action="store_true", help="train on the middle of each image")
    add("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes that read")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add("--decode", choices=("auto", "gpu", "cpu"), default="auto")
    add("--compile", action="store_true", help="torch.compile; takes a minute before the start")
    add(
        "--data-on-gpu",
        "--synthetic",
        action="store_true",
        help="the ceiling: a few batches decoded before the start, no reading",
    )
    add("--limit-images", type=int, metavar="N", help="train on N of the images")
    add("--steps", type=int, metavar="N", help="most steps per epoch")
    add("--skip-broken", action="store_true", help="count broken images and continue")
    add("--seed", type=int, default=0)
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="saved each epoch; resumed if it exists",
    )
    add("--dawnbench", type=Path, metavar="FOLDER", help="write dawnbench.json and .tsv there")
    about = parser.add_argument_group("for DAWNBench's JSON")
    for name in ("author", "authorEmail", "codeURL", "hardware", "costPerHour", "logFilename"):
        about.add_argument(f"--{name}", default="")
    options = parser.parse_args(arguments)
    if options.folder is None and not options.data_on_gpu:
        parser.error("which folder? (only --data-on-gpu needs none)")
    for name in ("batch", "epochs", "image_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    return options


class Training:
    """A model and everything needed to train it for one epoch."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks, classes: int) -> None:
        self.options, self.ranks = options, ranks
        on_gpu = ranks.device.type == "cuda"
        torch.manual_seed(options.seed)
        self.model = make_model(options.model, classes, options.width)
        self.model = self.model.to(ranks.device, memory_format=torch.channels_last)
        decay, rest = weights_and_rest(self.model)
        self.optimizer = torch.optim.SGD(
            [{"params": decay, "weight_decay": options.weight_decay}, {"params": rest}],
            lr=0.0,
            momentum=0.9,
            nesterov=True,
            fused=on_gpu,
        )
        self.stepped: nn.Module = self.model
        if ranks.count > 1:
            self.stepped = DistributedDataParallel(
                self.model,
                device_ids=[ranks.device] if on_gpu else None,
                gradient_as_bucket_view=True,
            )
        if options.compile:
            self.stepped = torch.compile(self.stepped)
        self.epochs: list[Epoch] = []  # completed, including those before the checkpoint

    def rate(self, epoch: float) -> float:
        """Return the learning rate: linear up, then half a cosine down. `epoch` is a fraction."""
        options = self.options
        peak = options.lr * options.batch * self.ranks.count / 256
        warmup = min(options.warmup_epochs, options.epochs / 4)
        if epoch < warmup:
            return peak * epoch / warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (options.epochs - warmup)))

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        device = self.ranks.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return model(images).float()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the images that have a label; there may be none."""
        summed = F.cross_entropy(
            outputs, labels, reduction="sum", label_smoothing=self.options.label_smoothing
        )
        return summed / (labels >= 0).sum().clamp(min=1)

    def warm_up(self, dtype: torch.dtype) -> None:
        """Choose cuDNN's algorithms and compile before the clock starts: 2 to 60 s that belong to
        no epoch. The weights do not change."""
        side, device = self.options.image_size, self.ranks.device
        images = torch.randn(self.options.batch, 3, side, side, device=device, dtype=dtype)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(len(images), dtype=torch.long, device=device)
        self.stepped.train()
        for _ in range(3):
            self.loss(self.forward(self.stepped, images), labels).backward()
            self.optimizer.zero_grad(set_to_none=True)
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        torch.cuda.synchronize(device)

    def train(self, epoch: int, source: Source) -> tuple[float, int, float, float]:
        """Return mean loss, images of all ranks, seconds, and the share that waited for data."""
        self.stepped.train()
        steps = source.steps
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        began = time.perf_counter()
        batches = source.batches(epoch)
        opened_s = time.perf_counter() - began  # starts the loader's workers in the first epoch
        try:
            for step, batch in enumerate(batches):
                for group in self.optimizer.param_groups:
                    group["lr"] = self.rate(epoch + (step + 1) / steps)
                loss = self.loss(self.forward(self.stepped, batch.images), batch.labels)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                seen = (batch.labels >= 0).sum()
                sums += torch.stack([loss.detach() * seen, seen])  # stays on the GPU: no wait
            waited_s = opened_s + batches.waited_s()
        finally:
            batches.close()
        # The all-reduce waits for the slowest rank; reading its result waits for the GPU.
        loss_sum, images, waits = total(
            torch.cat([sums, torch.tensor([waited_s], dtype=torch.float64, device=sums.device)])
        ).tolist()
        seconds = time.perf_counter() - began
        return loss_sum / max(images, 1), int(images), seconds, waits / self.ranks.count / seconds

    @torch.inference_mode()
    def validate(self, source: Source) -> tuple[float, float]:
        """Return top-1 and top-5 in per cent. Uses the bare model, because ranks may have unequal
        numbers of batches."""
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        batches = source.batches(0)
        try:
            for batch in batches:
                outputs = self.forward(self.model, batch.images)
                best = outputs.topk(min(5, outputs.shape[1])).indices == batch.labels[:, None]
                seen = (batch.labels >= 0).sum()
                sums += torch.stack([best[:, 0].sum(), best.sum(), seen])
        finally:
            batches.close()
        first, five, images = total(sums).tolist()
        return 100 * first / max(images, 1), 100 * five / max(images, 1)

    def save(self, path: Path) -> None:
        if not self.ranks.is_first:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
        beside = path.with_name(f".{path.name}.part")
        torch.save(state, beside)
        beside.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.ranks.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]


def run(options: argparse.Namespace) -> None:
    on_gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    ranks = join(use_gpu=on_gpu)
    if on_gpu:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    decodes = options.decode != "cpu" and can_decode_on_gpu(ranks.device)
    if options.decode == "gpu" and not decodes:
        raise NotPossible("--decode gpu: torchvision cannot decode on this device")
    source = training(options, ranks, dtype, decode_on_gpu=decodes)
    if options.data_on_gpu:
        source = on_device(options, ranks, dtype, source)
    assert source is not None
    checking = validation(options, ranks, dtype, source.classes, decode_on_gpu=decodes)
    job = Training(options, ranks, source.classes)
    if options.checkpoint and options.checkpoint.exists():
        job.load(options.checkpoint)
    if ranks.is_first:
        print(
            f"{options.model}, {source.classes} classes, {source.images:,} images; "
            f"{ranks.count} x {device_name(ranks.device)}, batch {options.batch}, "
            f"decoding on the {'GPU' if decodes else 'CPU'}",
            file=sys.stderr,
            flush=True,
        )
    if on_gpu:
        job.warm_up(dtype)
    began = time.perf_counter() - (job.epochs[-1].hours * 3600 if job.epochs else 0)
    for number in range(len(job.epochs), options.epochs):
        loss, images, seconds, waited = job.train(number, source)
        checked = time.perf_counter()
        top1, top5 = job.validate(checking) if checking else (None, None)
        now = time.perf_counter()
        hours = (now - began) / 3600
        skipped = torch.tensor([source.skipped + (checking.skipped if checking else 0)])
        epoch = Epoch(
            number,
            images / seconds,
            waited,
            top1,
            top5,
            loss,
            seconds,
            images,
            now - checked,
            int(total(skipped.to(ranks.device)).item()),
            hours,
        )
        job.epochs.append(epoch)
        if options.checkpoint:
            job.save(options.checkpoint)
        if ranks.is_first:
            print(line(epoch), flush=True)
            if options.dawnbench:
                write_dawnbench(options.dawnbench, about(options, ranks), misc(options), job.epochs)
    for opened in filter(None, (source, checking)):
        opened.close()
    leave()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def about(options: argparse.Namespace, ranks: Ranks) -> dict[str, str]:
    given = {
        name: getattr(options, name)
        for name in ("author", "authorEmail", "codeURL", "hardware", "costPerHour", "logFilename")
    }
    given["hardware"] = given["hardware"] or f"{ranks.count} x {device_name(ranks.device)}"
    return {**given, "framework": f"PyTorch {torch.__version__}", "model": options.model}


def misc(options: argparse.Namespace) -> dict[str, object]:
    kept = (
        "batch",
        "epochs",
        "lr",
        "warmup_epochs",
        "weight_decay",
        "label_smoothing",
        "image_size",
        "smallest_crop",
        "no_augment",
        "width",
        "compile",
        "data_on_gpu",
        "limit_images",
        "steps",
        "seed",
        "workers",
    )
    return {**{name: getattr(options, name) for name in kept}, "python": platform.python_version()}


def main() -> None:
    options = options_of()
    # Before any other thread or process starts: they inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    threading.Thread(target=end_on_signal, name="signals", daemon=True).start()
    try:
        run(options)
    except BrokenImage as error:
        fail(f"{error}; hint: --skip-broken goes on without it")
    except (NoImages, NotPossible) as error:
        fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        fail(f"{error.filename}: {error.strerror}")


def end_on_signal() -> NoReturn:
    """End the training at once on Ctrl-C or SIGTERM, with one line. A thread waits for them: a
    signal handler would not run while a rank waits for one that has ended, or for storage that
    hangs. Readers die with this process; a checkpoint is replaced only when it is complete."""
    number = signal.sigwait(_ENDINGS)
    print(f"ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    os._exit(128 + number)


def fail(what: str) -> NoReturn:
    print(f"error: {what}", file=sys.stderr, flush=True)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
