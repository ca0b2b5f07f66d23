"""penstock submit: start a training job, with the options of arena."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from penstock.cli import arena
from penstock.cli.arena import GoFlags
from penstock.cli.configuration import configuration_path, priority_classes
from penstock.cli.output import as_text, notify
from penstock.cli.submit_flags import ALIASES, TRAINERS, flags_without_effect, options_of, our_name
from penstock.errors import ManifestError, OptionError, Problem, did_you_mean
from penstock.units import parse_duration

Json = dict[str, Any]

_SHORT = {
    "mpi": "With mpirun: a process for each GPU of each worker.",
    "pytorch": "With torchrun: a process for each GPU of each worker.",
    "horovod": "With mpirun, as Horovod starts its processes.",
    "tf": "With TF_CONFIG: workers and parameter servers.",
}
_HELP = {
    "mpi": """Submit a job that mpirun starts.

    COMMAND runs in each rank: one for each GPU of each worker, without GPUs one for each worker. A
    COMMAND that calls mpirun itself runs once, with hosts and slots in its environment.""",
    "pytorch": """Submit a job that torchrun starts.

    Each worker is a torchrun, which runs COMMAND once for each of its GPUs, or once without GPUs;
    they connect over the loopback interface. A COMMAND that calls torchrun itself runs once for
    each worker.""",
    "horovod": """Submit a Horovod job.

    mpirun runs COMMAND in each rank: one for each GPU of each worker, without GPUs one for each
    worker. A COMMAND that calls horovodrun or mpirun itself runs once.""",
    "tf": """Submit a TensorFlow job.

    COMMAND runs in each instance, with a TF_CONFIG that lists all instances.""",
}
_EXAMPLES = {
    "mpi": ("mpi --name resnet --workers 2 --data imagenet:/data ./train.sh 2",),
    "pytorch": (
        "pytorch --name resnet --gpus 1 --data imagenet:/data python train.py",
        'pytorch --name resnet --data imagenet:/data --wait "python train.py > out.log"',
    ),
    "horovod": ("horovod --name resnet --workers 4 --gpus 8 python train.py",),
    "tf": ("tf --name wide --workers 2 --ps 1 --data census:/data python train.py",),
}


class Trainers(click.Group):
    """The trainers, also by arena's other names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TRAINERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            hint = arena.TRAINERS.get(args[0])
            hint = hint or did_you_mean(args[0], TRAINERS, f"trainers: {', '.join(TRAINERS)}")
            raise OptionError(f"{args[0]!r} is not a trainer", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(cls=Trainers, subcommand_metavar="TRAINER [OPTIONS] COMMAND...")
def submit() -> None:
    """Submit a training job on data sets.

    The job is checked against what this machine has, and then runs in the background. Options come
    before COMMAND, which is one word for a shell, or a command and its arguments.

    \b
    Example:
      penstock submit mpi --name resnet --workers 2 --data imagenet:/data ./train.sh
      penstock logs resnet -f
    """


def _submit(trainer: str, words: tuple[str, ...], **options: Any) -> None:
    from penstock.api import jobs, manifests

    manifest = manifest_of(trainer, options, words, environment=os.environ, folder=Path.cwd())
    namespace, dry_run = options["namespace"], options["dry_run"]
    if options["output"] and not dry_run:
        raise OptionError("-o is for --dry-run", hint="`penstock get job NAME -o yaml` shows a job")
    try:
        manifests.read(manifest, namespace=namespace)  # its mistakes come before other messages
        for line in flags_without_effect(trainer, options):
            notify(line)
        if options["output"]:
            _print(manifest, options["output"])
            return
        job = jobs.submit(manifest, namespace=namespace, dry_run=dry_run)
    except ManifestError as error:
        raise by_options(error) from None
    created = f"trainingjob.penstock.dev/{options['name']} created"
    if job is None:
        click.echo(f"{created} (dry run)")
        return
    click.echo(created)
    sys.stdout.flush()
    if options["wait"]:
        from penstock.cli.jobs import wait_for

        wait_for(job)
    else:
        name = jobs.command_line_name(job.key)
        notify(
            f"running in the background; check it with `penstock get job {name}`, "
            f"follow its output with `penstock logs {name} -f`"
        )


def _print(manifest: Json, form: str) -> None:
    """Print what `apply -f` takes, with values that look secret replaced."""
    from penstock.api.manifests import HIDDEN, hide_secrets

    shown, has_secrets = hide_secrets(manifest)
    if has_secrets:
        notify(f"values that look secret are {HIDDEN}: write them in before you apply it")
    click.echo(as_text(shown, form))


for _trainer in TRAINERS:
    _examples = "".join(f"\n      penstock submit {one}" for one in _EXAMPLES[_trainer])
    submit.add_command(
        GoFlags(
            _trainer,
            params=options_of(_trainer),
            callback=partial(_submit, _trainer),
            short_help=_SHORT[_trainer],
            help=f"{_HELP[_trainer]}\n\n    \b\n    Example:{_examples}",
            context_settings={
                "allow_interspersed_args": False,
                "token_normalize_func": our_name,
            },
        )
    )


# -- from options to a manifest ----------------------------------------------------------------

# These variables are copied into the job, so that it finds the programs that the submitting shell
# finds: the loop that starts jobs may itself run outside of any virtual environment.
_COPIED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
_OPTIONS: Mapping[str, str] = {
    "metadata.name": "--name", "metadata.namespace": "--namespace", "metadata.labels": "--label",
    "metadata.annotations": "--annotation", "spec.workers": "--workers", "spec.gpus": "--gpus",
    "spec.command": "COMMAND", "spec.launch": "--launch", "spec.workingDir": "--working-dir",
    "spec.data": "--data", "spec.env": "--env", "spec.image": "--image", "spec.cpu": "--cpu",
    "spec.memory": "--memory", "spec.warm": "--warm", "spec.plan": "--plan",
    "spec.retries": "--retry", "spec.timeoutSeconds": "--timeout",
    "spec.ttlSecondsAfterFinished": "--ttl", "spec.priority": "--priority", "spec.ps": "--ps",
}  # fmt: skip
# How the text of a problem begins: `spec.data.0.mountPath: is missing`, `spec.image cannot be run`.
_PLACE = re.compile(r"((?:spec|metadata)(?:\.\w+)+):? (.*)", re.DOTALL)


def manifest_of(
    trainer: str,
    options: Mapping[str, Any],
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
) -> Json:
    """Return the TrainingJob; `folder` and `environment` are those of the submitting shell."""
    if not options["name"]:
        after = any(word.partition("=")[0] == "--name" for word in words)
        hint = "options come before the command; what follows it is the command's"
        raise OptionError("--name is missing", hint=hint if after else "--name resnet")
    image = options["image"]
    _refuse_for_servers(options)
    _refuse_other_targets("--data-dir", options["data_dir"], image)
    _refuse_other_targets("--config-file", options["config_file"], image)
    metadata: Json = {"name": options["name"]}
    if options["namespace"]:
        metadata["namespace"] = options["namespace"]
    for field in ("label", "annotation"):
        if options[field]:
            metadata[f"{field}s"] = dict(_pair(f"--{field}", one) for one in options[field])
    gpus = _gpus(options["gpus"], options["device"])
    spec: Json = {"trainer": trainer, "workers": options["workers"], "gpus": gpus}
    spec["command"] = _command(words, options["shell"])
    working_dir = options["working_dir"]
    if working_dir or not image:
        # In an image it is a folder of the image; otherwise a path as the shell resolves it.
        spec["workingDir"] = working_dir if image else str(folder / (working_dir or ""))
    spec["data"] = [_data(one) for one in options["data"]]
    copied = {} if image else {name: environment.get(name) for name in _COPIED}
    spec["env"] = _environment(options["env"], copied, environment)
    spec["image"] = image
    for field in ("cpu", "memory", "warm", "plan", "ps"):
        spec[field] = options.get(field)
    spec["priority"] = priority(options["priority"], priority_classes())
    spec["launch"] = None if options.get("launch") == "auto" else options.get("launch")
    spec["retries"] = options["retry"]
    spec["timeoutSeconds"] = _seconds("--timeout", options["timeout"])
    spec["ttlSecondsAfterFinished"] = _seconds("--ttl", options["ttl"])
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": metadata,
        # As a person would write it: without default values.
        "spec": {
            name: value
            for name, value in spec.items()
            if value or name == "workers" or (name == "ttlSecondsAfterFinished" and value == 0)
        },
    }


def by_options(error: ManifestError) -> ManifestError:
    """The same mistakes, each with the option that it came from."""
    return ManifestError.of([_by_option(problem) for problem in error.problems])


def _by_option(problem: Problem) -> Problem:
    found = _PLACE.match(problem.what)
    path, what = found.groups() if found else ("", problem.what)
    for place, option in _OPTIONS.items():
        if path == place or path.startswith(f"{place}."):
            return Problem(option, what, problem.hint)
    return Problem("submit", problem.what, problem.hint)


def _command(words: Sequence[str], shell: str) -> str | list[str]:
    """One word is a line for a shell; several are a command and its arguments."""
    if len(words) > 1:
        return list(words)
    return words[0] if shell == "sh" else [shell, "-c", words[0]]


def _data(text: str) -> Json:
    name, colon, rest = text.partition(":")
    path, _, below = rest.partition(":")
    namespace, slash, dataset = name.rpartition("/")
    if not colon or not dataset or not path.startswith("/") or (slash and not namespace):
        raise OptionError(
            f"--data: {text!r} is not a data set and a path", hint="write it like imagenet:/data"
        )
    found: Json = {"dataset": dataset, "mountPath": path}
    if namespace:
        found["namespace"] = namespace
    if below:
        found["subPath"] = below
    return found


def _environment(
    given: Sequence[str], copied: Mapping[str, str | None], environment: Mapping[str, str]
) -> list[Json]:
    values = {name: value for name, value in copied.items() if value}
    for text in given:
        name, equals, value = text.partition("=")
        if not name:
            raise OptionError(f"--env: {text!r} has no name", hint="write it like KEY=VALUE")
        if not equals:
            if name not in environment:
                raise OptionError(
                    f"--env: {name} is not in your environment", hint=f"write {name}=VALUE"
                )
            value = environment[name]
        values[name] = value
    return [{"name": name, "value": value} for name, value in values.items()]


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionError(f"{option}: {text!r} is not KEY=VALUE", hint=f"{option} team=vision")
    return name, value


def _seconds(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    seconds = parse_duration(text, what=option)
    if seconds != int(seconds) or (option == "--timeout" and not seconds):
        raise OptionError(f"{option}: {text!r} is not in whole seconds", hint=f"{option} 90s")
    return int(seconds)


def _gpus(gpus: int, devices: Sequence[str]) -> int:
    """The GPUs of each worker; a device is one that the jobs of this machine can be given."""
    for text in devices:
        name, _, count = text.partition("=")
        if name != "nvidia.com/gpu":
            raise OptionError(
                f"--device: jobs are given nvidia.com/gpu, not {name!r}", hint="--gpus 2"
            )
        if not re.fullmatch("[0-9]+", count) or gpus not in (0, int(count)):
            raise OptionError(
                f"--device: {text!r} is not a number of GPUs for each worker"
                + (f", or not that of --gpus {gpus}" if gpus else ""),
                hint="--device nvidia.com/gpu=2, which is --gpus 2",
            )
        gpus = int(count)
    return gpus


def priority(text: str, classes: Mapping[str, int]) -> int:
    """A number, or the name of a priority class, as arena takes it."""
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    if text in classes:
        return classes[text]
    raise OptionError(
        f"--priority: {text!r} is neither a number nor a priority class",
        hint=did_you_mean(
            text,
            classes,
            f"write a number, or give {text} one in [priority-classes] of {configuration_path()}",
        ),
    )


def _refuse_for_servers(options: Mapping[str, Any]) -> None:
    if options.get("ps_gpus"):
        raise OptionError(
            "--ps-gpus: parameter servers run without GPUs here",
            hint="leave it out; --gpus are those of each worker",
        )
    if options.get("ps_image") not in (None, options["image"]):
        raise OptionError(
            f"--ps-image: all instances of a job run in one image, not also in "
            f"{options['ps_image']}",
            hint="--image is that of workers and parameter servers",
        )


def _refuse_other_targets(option: str, given: Sequence[str], image: str | None) -> None:
    for text in given:
        source, colon, target = text.partition(":")
        if image or (colon and source.rstrip("/") != target.rstrip("/")):
            where = "an image" if image else "another place inside the job"
            raise OptionError(
                f"{option}: {source} cannot be put into {where}",
                hint="a job without an image sees the files of this machine where they are; "
                "--data puts a data set at a path of its own",
            )
