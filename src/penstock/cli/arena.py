"""Arena's habits on the command line: its way to write flags, its names of commands, and for what
has no place on one machine, a sentence that says what to use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

# arena's other names of commands.
SAME: Mapping[str, str] = {"ls": "list", "log": "logs", "del": "delete"}

_SERVING = "Penstock serves data, not models: `penstock mount` gives a server its model files"
_MODELS = "there is no registry of models; a model is a file in a bucket"
_ELASTIC = "a job keeps its number of workers: delete it, and submit it with another --workers"
# arena's commands that have no counterpart, and what to use instead.
COMMANDS: Mapping[str, str] = {
    "cron": "write a line for `crontab -e`: 0 3 * * * penstock submit mpi --name …",
    "logviewer": "`penstock ui` shows jobs and their logs in a browser",
    "whoami": "jobs belong to the user who submits them: `id -un` names you",
    "scalein": _ELASTIC,
    "scaleout": _ELASTIC,
    "model": _MODELS,
    "evaluate": "an evaluation is a job like any other: `penstock submit`",
    "llm": _SERVING,
}
TRAINERS: Mapping[str, str] = {
    **dict.fromkeys(("etjob", "et"), _ELASTIC),
    **dict.fromkeys(("volcanojob", "volcano", "vj"), "jobs queue by themselves: use mpi"),
    **dict.fromkeys(("sparkjob", "spark", "sj"), "run spark-submit in a job: use tf"),
    **dict.fromkeys(("deepspeedjob", "deepspeed", "dp"), "DeepSpeed runs under torchrun: pytorch"),
    **dict.fromkeys(("rayjob", "ray", "rj"), "run `ray start --head` in a job: use tf"),
}
_BY_NAME = "a job is found by its name alone"
# arena's options that have another place: by command, then by option.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "get": {
        "-e": "`penstock describe job NAME` shows the events of a job",
        "--events": "`penstock describe job NAME` shows the events of a job",
        "-g": "`penstock top job NAME` shows the GPUs of a job",
        "--gpus": "`penstock top job NAME` shows the GPUs of a job",
        "-T": f"{_BY_NAME}: `penstock get job NAME`",
        "--type": f"{_BY_NAME}: `penstock get job NAME`",
    },
    "delete": {
        "-T": f"{_BY_NAME}: `penstock delete job NAME`",
        "--type": f"{_BY_NAME}: `penstock delete job NAME`",
    },
    "logs": {
        "--timestamps": "a log keeps what the job prints; `--since` finds the lines of a time",
    },
    "top node": {
        "-m": "GPUs are not shared here: each belongs to one job",
        "--gpu-mode": "GPUs are not shared here: each belongs to one job",
        "--metric": "measured on this machine at once, without Prometheus",
    },
}

# An option that arena has renamed.
_OLD = {"--allNamespaces": "--all-namespaces"}
# As Go's strconv.ParseBool reads them.
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class GoFlags(click.Command):
    """A command whose flags may have a value, as in Go: --rdma=true, --tensorboard=false."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._without_values(ctx, args))

    def _without_values(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        normalized = ctx.token_normalize_func or str
        options = {
            name: one
            for one in self.get_params(ctx)
            if isinstance(one, click.Option)
            for name in (*one.opts, *one.secondary_opts)
        }
        kept: list[str] = []
        rest = iter(args)
        for written in rest:
            word = _OLD.get(written, written)
            name, equals, value = word.partition("=")
            is_long = word.startswith("--")
            if word == "--" or (not word.startswith("-") and not ctx.allow_interspersed_args):
                kept.append(word)
                break
            option = options.get("--" + normalized(name[2:]) if is_long else word[:2])
            if option is None or not word.startswith("-"):
                kept.append(word)
            elif option.is_flag and is_long and equals and value in _TRUE | _FALSE:
                if value in _TRUE:
                    kept.append(name)
            else:
                kept.append(word)
                takes_next = not equals if is_long else len(word) == 2
                if takes_next and not option.is_flag and not option.count:
                    kept += [
                        following for following in (next(rest, None),) if following is not None
                    ]
        return [*kept, *rest]


def instead(error: click.ClickException) -> str | None:
    """Return what to use instead of what arena has and Penstock does not; None for other errors."""
    context = getattr(error, "ctx", None)
    path = "" if context is None else context.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        return OPTIONS.get(path, {}).get(error.option_name)
    if path == "serve" and isinstance(error, click.UsageError):
        return _SERVING
    return None


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Accept arena's options about its cluster, which every command of arena has."""
    for name in ("--arena-namespace", "--config", "--loglevel"):
        command = click.option(name, hidden=True, expose_value=False)(command)
    for name in ("--trace", "--pprof", "--helm-binary"):
        command = click.option(name, is_flag=True, hidden=True, expose_value=False)(command)
    return command


def container_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Accept arena's -c and ignore it: an instance has no other container than its own."""
    return click.option("-c", "--container", hidden=True, expose_value=False)(command)
