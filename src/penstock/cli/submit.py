"""penstock submit: a training job, which runs on without who submitted it."""

import os
import sys
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.submit_flags import ALIASES, TRAINERS, options_of, our_name, said_without_effect
from penstock.cli.submit_manifest import by_options, manifest_of
from penstock.cli.talk import say
from penstock.errors import ManifestError, OptionError, UsageError

if TYPE_CHECKING:
    from penstock.resources.state import State
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
            near = get_close_matches(args[0], TRAINERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"trainers: {', '.join(TRAINERS)}"
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

    manifest = manifest_of(
        trainer, options, words, environment=os.environ, folder=Path.cwd()
    )  # fmt: skip
    if options["output"] and not options["dry_run"]:
        raise OptionError("-o is for --dry-run", hint="`penstock get job NAME -o yaml` shows a job")
    try:
        documents = read_all(
            [(json.dumps(manifest), "submit")], namespace=options["namespace"] or "default"
        )
        for line in said_without_effect(trainer, options):
            say(line)
        if options["output"]:
            _print(manifest, options["output"])
        else:
            _hand_in(documents, options["name"], dry_run=options["dry_run"], wait=options["wait"])
    except ManifestError as error:
        raise by_options(error) from None


def _hand_in(documents: "list[Document]", name: str, *, dry_run: bool, wait: bool) -> None:
    from penstock.resources.admission import apply as admit
    from penstock.resources.nudge import nudge
    from penstock.resources.state import State

    state = State()
    _refuse_second(state, documents)
    admit(state, documents, dry_run=dry_run, only_new=True)
    if dry_run:
        click.echo(f"trainingjob.penstock.dev/{name} created (dry run)")
        return
    nudge(state.folder)
    click.echo(f"trainingjob.penstock.dev/{name} created")
    sys.stdout.flush()
    key = documents[0].resource.key
    where = f" -n {key.namespace}" if key.namespace != "default" else ""
    if wait:
        from penstock.cli.job_waiting import wait_for

        wait_for(state, key)
    else:
        say(
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
    from penstock.cli.printing import text_of
    from penstock.specs.secrets import HIDDEN, take_secrets

    shown, secrets = take_secrets(manifest)
    if secrets:
        say(f"values that look secret are {HIDDEN}: write them in before you apply it")
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
