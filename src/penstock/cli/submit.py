"""penstock submit: a training job, which runs on without who submitted it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import notify
from penstock.cli.submit_flags import ALIASES, TRAINERS, flags_without_effect, options_of, our_name
from penstock.errors import ManifestError, OptionError, Problem, UsageError, did_you_mean
from penstock.units import parse_duration

# A TrainingJob's manifest, of what `penstock submit` was given. Pure.
#
# What the models and the machine say of it is said in their words, by the option that it is
# about.

Json = dict[str, Any]

# The command that is found is the one that a shell would find where the job is submitted: what
# keeps the jobs going may have been started elsewhere, outside of any virtual environment.
_CARRIED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
_OPTIONS: Mapping[str, str] = {
    "metadata.name": "--name", "metadata.namespace": "--namespace", "metadata.labels": "--label",
    "metadata.annotations": "--annotation", "spec.workers": "--workers", "spec.gpus": "--gpus",
    "spec.command": "COMMAND", "spec.launch": "--launch", "spec.workingDir": "--working-dir",
    "spec.data": "--data", "spec.env": "--env", "spec.image": "--image", "spec.cpu": "--cpu",
    "spec.memory": "--memory", "spec.warm": "--warm", "spec.plan": "--plan",
    "spec.retries": "--retry", "spec.timeoutSeconds": "--timeout",
    "spec.ttlSecondsAfterFinished": "--ttl", "spec.priority": "--priority", "spec.ps": "--ps",
}  # fmt: skip
# What a problem begins with: `spec.data.0.mountPath: is missing`, `spec.image cannot be run`.
_PLACE = re.compile(r"((?:spec|metadata)(?:\.\w+)+):? (.*)", re.DOTALL)


def manifest_of(
    trainer: str,
    options: Mapping[str, Any],
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
) -> Json:
    """`folder` and `environment` are those of who submits."""
    if not options["name"]:
        after = any(word.partition("=")[0] == "--name" for word in words)
        hint = "options come before the command; what follows it is the command's"
        raise OptionError("--name is missing", hint=hint if after else "--name resnet")
    image = options["image"]
    _refuse_other_places("--data-dir", options["data_dir"], image)
    _refuse_other_places("--config-file", options["config_file"], image)
    metadata: Json = {"name": options["name"]}
    if options["namespace"]:
        metadata["namespace"] = options["namespace"]
    for field in ("label", "annotation"):
        if options[field]:
            metadata[f"{field}s"] = dict(_pair(f"--{field}", one) for one in options[field])
    spec: Json = {"trainer": trainer, "workers": options["workers"], "gpus": options["gpus"]}
    spec["command"] = _command(words, options["shell"])
    working_dir = options["working_dir"]
    if working_dir or not image:
        # In an image it is one of the image's; here, as a shell would look it up.
        spec["workingDir"] = working_dir if image else str(folder / (working_dir or ""))
    spec["data"] = [_data(one) for one in options["data"]]
    carried = {} if image else {name: environment.get(name) for name in _CARRIED}
    spec["env"] = _environment(options["env"], carried, environment)
    spec["image"] = image
    for field in ("cpu", "memory", "priority", "warm", "plan", "ps"):
        spec[field] = options.get(field)
    spec["launch"] = None if options.get("launch") == "auto" else options.get("launch")
    spec["retries"] = options["retry"]
    spec["timeoutSeconds"] = _seconds("--timeout", options["timeout"])
    spec["ttlSecondsAfterFinished"] = _seconds("--ttl", options["ttl"])
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": metadata,
        # As a person would write it: without what is so anyway.
        "spec": {
            name: value
            for name, value in spec.items()
            if value or name == "workers" or (name == "ttlSecondsAfterFinished" and value == 0)
        },
    }


def by_options(error: ManifestError) -> ManifestError:
    """The same mistakes, each named by the option that it came from."""
    return ManifestError.of([_by_option(problem) for problem in error.problems])


def _by_option(problem: Problem) -> Problem:
    found = _PLACE.match(problem.what)
    path, what = found.groups() if found else ("", problem.what)
    for place, option in _OPTIONS.items():
        if path == place or path.startswith(f"{place}."):
            return Problem(option, what, problem.hint)
    return Problem("submit", problem.what, problem.hint)


def _command(words: Sequence[str], shell: str) -> str | list[str]:
    """One word is a line for a shell; several are a command and its arguments, as they are."""
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
    given: Sequence[str], carried: Mapping[str, str | None], environment: Mapping[str, str]
) -> list[Json]:
    values = {name: value for name, value in carried.items() if value}
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


def _refuse_other_places(option: str, given: Sequence[str], image: str | None) -> None:
    for text in given:
        source, colon, target = text.partition(":")
        if image or (colon and source.rstrip("/") != target.rstrip("/")):
            where = "an image" if image else "another place inside the job"
            raise OptionError(
                f"{option}: {source} cannot be put into {where}",
                hint="a job without an image sees the files of this machine where they are; "
                "--data puts a data set at a path of its own",
            )


if TYPE_CHECKING:
    from penstock.reconcile.state import State
    from penstock.specs.documents import Document

_SHORT = {
    "mpi": "With mpirun: a process for each GPU of each worker.",
    "pytorch": "With torchrun: a rendezvous, and a process for each GPU of each worker.",
    "horovod": "With mpirun, as Horovod starts its processes.",
    "tf": "With TF_CONFIG: workers and parameter servers.",
}
_HELP = {
    "mpi": """Submit a job that mpirun starts.

    COMMAND runs in each rank: one for each GPU of each worker, without GPUs one for each worker.
    One that calls mpirun itself runs once; hosts and slots are in its environment.""",
    "pytorch": """Submit a job that torchrun starts.

    Each worker is a torchrun, which runs COMMAND once for each of its GPUs, or once; they meet on
    this machine's loopback interface. One that calls torchrun itself runs once for each worker.""",
    "horovod": """Submit a job of Horovod.

    COMMAND runs in each rank, by mpirun: one for each GPU of each worker, without GPUs one for each
    worker. One that calls horovodrun or mpirun itself runs once.""",
    "tf": """Submit a job of TensorFlow.

    COMMAND runs in each instance, with a TF_CONFIG that says who takes part.""",
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
    """arena's other words for a trainer lead to the same command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TRAINERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            hint = did_you_mean(args[0], TRAINERS, f"trainers: {', '.join(TRAINERS)}")
            raise OptionError(f"{args[0]!r} is not a trainer", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(cls=Trainers, subcommand_metavar="TRAINER [OPTIONS] COMMAND...")
def submit() -> None:
    """Submit a training job on data sets.

    The job is accepted, or refused with what there is; then it runs on without you. Options come
    before COMMAND: of one word, it is a line for a shell; of several, a command and its arguments.

    \b
    Example:
      penstock submit mpi --name resnet --workers 2 --data imagenet:/data ./train.sh
      penstock logs resnet -f
    """


def _submit(trainer: str, words: tuple[str, ...], **options: Any) -> None:
    import json

    from penstock.specs.documents import read_all

    manifest = manifest_of(trainer, options, words, environment=os.environ, folder=Path.cwd())
    if options["output"] and not options["dry_run"]:
        raise OptionError("-o is for --dry-run", hint="`penstock get job NAME -o yaml` shows a job")
    try:
        documents = read_all(
            [(json.dumps(manifest), "submit")], namespace=options["namespace"] or "default"
        )
        for line in flags_without_effect(trainer, options):
            notify(line)
        if options["output"]:
            _print(manifest, options["output"])
        else:
            _hand_in(documents, options["name"], dry_run=options["dry_run"], wait=options["wait"])
    except ManifestError as error:
        raise by_options(error) from None


def _hand_in(documents: "list[Document]", name: str, *, dry_run: bool, wait: bool) -> None:
    from penstock.reconcile.admission import apply as admit
    from penstock.reconcile.admission import data_problems
    from penstock.reconcile.loop_control import wake_loop
    from penstock.reconcile.state import State

    state = State()
    _refuse_second(state, documents)
    if problems := data_problems(state, documents[0]):
        raise ManifestError.of(problems)
    admit(state, documents, dry_run=dry_run, only_new=True)
    if dry_run:
        click.echo(f"trainingjob.penstock.dev/{name} created (dry run)")
        return
    wake_loop(state.folder)
    click.echo(f"trainingjob.penstock.dev/{name} created")
    sys.stdout.flush()
    key = documents[0].resource.key
    where = f" -n {key.namespace}" if key.namespace != "default" else ""
    if wait:
        from penstock.cli.job_view import wait_for

        wait_for(state, key)
    else:
        notify(
            f"it runs on without you; `penstock get job {name}{where}` shows how it is, "
            f"`penstock logs {name}{where} -f` what it prints"
        )


def _refuse_second(state: "State", documents: "list[Document]") -> None:
    key = documents[0].resource.key
    there = state.find(key)
    if there is None:
        return
    if there.deleting is not None:
        raise UsageError(f"job {key.name} is being deleted", hint="submit it again in a moment")
    phase = there.status.get("phase") or "not looked at yet"
    where = f" -n {key.namespace}" if key.namespace != "default" else ""
    raise UsageError(
        f"there is a job {key.name} already, and it is {phase}",
        hint=f"give another name, or `penstock delete job {key.name}{where}` first",
    )


def _print(manifest: dict[str, Any], form: str) -> None:
    """What `apply -f` takes. A value that looks secret is not shown, here as anywhere."""
    from penstock.cli.output import text_of
    from penstock.specs.secret_fields import HIDDEN, take_secrets

    shown, secrets = take_secrets(manifest)
    if secrets:
        notify(f"values that look secret are {HIDDEN}: write them in before you apply it")
    click.echo(text_of(shown, form))


for _trainer in TRAINERS:
    _examples = "".join(f"\n      penstock submit {one}" for one in _EXAMPLES[_trainer])
    submit.add_command(
        click.Command(
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
