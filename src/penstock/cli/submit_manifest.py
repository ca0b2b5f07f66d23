"""A TrainingJob's manifest, of what `penstock submit` was given. Pure.

What the models and the machine say of it is said in their words, by the option that it is about.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ManifestError, OptionError, Problem
from penstock.units import parse_duration

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
    trainer: str, options: Mapping[str, Any], words: Sequence[str], *,
    environment: Mapping[str, str], folder: Path,
) -> Json:  # fmt: skip
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
        "apiVersion": "penstock.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata,
        # As a person would write it: without what is so anyway.
        "spec": {
            name: value for name, value in spec.items()
            if value or name == "workers" or (name == "ttlSecondsAfterFinished" and value == 0)
        },
    }  # fmt: skip


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
