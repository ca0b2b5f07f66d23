"""What a runtime says of its mount, in the words of our own options. Pure."""

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import OptionError, SpecProblem, did_you_mean
from penstock.fluid import stores
from penstock.fluid.fuse_options import read_words, split_args
from penstock.fluid.properties import (
    KERNEL,
    LISTED,
    REFUSED,
    Setting,
    find_setting,
    has_name,
    names_of,
    why_unused,
)
from penstock.fluid.values import Idle, Note, Said, Written, misspelled
from penstock.mount_options import ALWAYS, known_names
from penstock.mount_options import REFUSED as KERNEL_REFUSED
from penstock.settings import OPTIONS
from penstock.specs.models import Runtime
from penstock.specs.runtimes import PenstockRuntime

_THIN = "it is for the image of the runtime's profile, which is not run"


@dataclass(slots=True)
class Choices:
    """Each with the place in the manifest where it was said."""

    options: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    fields: dict[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    store: Written = field(default_factory=lambda: Written({}, {}))  # for mounts of any scheme


def is_mount_option(kind: str, name: str) -> bool:
    """Whether a runtime's settings know the name, acted on or not."""
    return (
        find_setting(kind, name) is not None
        or has_name(kind, name)
        or name in REFUSED
        or _is_kernel_word(name)
    )


def choose(runtime: Runtime, of_mounts: Written, said: Said) -> Choices:
    """`of_mounts` are options of the mount that were written beside those of its store."""
    choices = Choices()
    if isinstance(runtime, PenstockRuntime):
        words = list[tuple[str, str]]()
        for name, text in runtime.spec.options.items():
            path = f"spec.options.{name}"
            if _is_kernel_word(name) and name not in OPTIONS:
                words.append((f"{name}={text}" if text else name, path))
            else:
                choices.options[name] = (text, path)
        choices.fields.update(read_words(words, said))
        return choices
    written = _settings(runtime).over(of_mounts)
    words: list[tuple[str, str]] = []
    for name, text in written.values.items():
        _judge(runtime.kind, name, text, written, choices, words, said)
    strange = _THIN if runtime.kind == "ThinRuntime" else None
    for number, word, of_kernel in split_args(getattr(runtime.spec.fuse, "args", [])):
        path = f"spec.fuse.args.{number}"
        if of_kernel:
            words.append((word, path))
        else:
            said.no_effect(path, "it is an argument of the runtime's own FUSE program")
    choices.fields.update(read_words(words, said, strange=strange))
    return choices


def _settings(runtime: Runtime) -> Written:
    """The client's before the worker's, and both before those of all: as Fluid has it."""
    spec: Any = runtime.spec
    name = "options" if runtime.kind in ("JuiceFSRuntime", "ThinRuntime") else "properties"
    written = Written.at(f"spec.{name}", getattr(spec, name, None))
    for component in ("worker", "fuse"):
        given = getattr(getattr(spec, component), name, None)
        written = Written.at(f"spec.{component}.{name}", given).over(written)
    return written


def _judge(
    kind: str,
    name: str,
    text: str,
    written: Written,
    choices: Choices,
    words: list[tuple[str, str]],
    said: Said,
) -> None:
    path = written.paths[name]
    if (setting := find_setting(kind, name)) is not None:
        _apply(setting, text, written, choices, words, said)
    elif kind != "JuiceFSRuntime" and stores.family_of(name) is not None:
        choices.store = Written({name: text}, {name: path}).over(choices.store)
    elif name in REFUSED:
        raise SpecProblem(path, f"{name} has no effect", hint=REFUSED[name])
    elif kind in ("JuiceFSRuntime", "ThinRuntime") and _is_kernel_word(name):
        words.append((f"{name}={text}" if text else name, path))
    elif not has_name(kind, name) and (slip := misspelled(name, names_of(kind))) is not None:
        raise SpecProblem(path, f"{name} is not a setting", hint=f"did you mean {slip}?")
    elif (reason := why_unused(kind, name)) is not None:
        said.no_effect(path, reason)
    else:
        hint = did_you_mean(name, names_of(kind), LISTED)
        raise SpecProblem(path, f"{name} is not a setting of {kind}", hint=hint)


def _apply(
    setting: Setting,
    text: str,
    written: Written,
    choices: Choices,
    words: list[tuple[str, str]],
    said: Said,
) -> None:
    path = written.paths[setting.name]
    try:
        answer = setting.read(text, written.values)
    except OptionError as error:
        raise SpecProblem(path, str(error), hint=error.hint) from error
    if isinstance(answer, Idle):
        said.no_effect(path, answer.reason)
        return
    if isinstance(answer, Note):
        said.note(f"{path}: {text} is taken as {answer.text}: {answer.why}")
        answer = answer.text
    if setting.options == (KERNEL,):
        words += [(word, path) for word in answer.split(",") if word]
        return
    for option in setting.options:
        if option in choices.options:
            said.no_effect(path, f"{choices.options[option][1]} says it already")
        else:
            choices.options[option] = (answer, path)


def _is_kernel_word(name: str) -> bool:
    return name in ALWAYS or name in KERNEL_REFUSED or name in known_names()
