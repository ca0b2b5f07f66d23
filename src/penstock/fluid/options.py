"""A runtime's settings and FUSE arguments, translated to our mount options. Pure.

Kernel options mean the same as on our command line (penstock.mount_options). Those that the
command line refuses have no effect here, since people carry over whole files of arguments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import OptionError, SpecProblem, did_you_mean
from penstock.fluid import stores
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
from penstock.fluid.values import Adjusted, Report, Unused, Written, misspelled
from penstock.mount_options import ALWAYS, known_names, parse_kernel_options
from penstock.mount_options import REFUSED as KERNEL_REFUSED
from penstock.settings import OPTIONS
from penstock.specs.models import Runtime
from penstock.specs.runtimes import PenstockRuntime

_THIN = "it is for the image of the runtime's profile, which does not run here"
_KERNEL = "the kernel decides it"
_PROGRAM = "it belongs to another FUSE program"

# Options of libfuse and of the FUSE programs of Jindo and JuiceFS that our command line lacks.
ELSEWHERE: Final[dict[str, str]] = {
    "negative_timeout": "missing names are not cached",
    "congestion_threshold": "it is set with max_background, which is 64",
    "ac_attr_timeout": "pages are dropped by version, when the object changes",
    "noauto_cache": "pages are dropped by version, when the object changes",
    "remember": "inodes are kept as long as the kernel holds them",
    "noforget": "inodes are kept as long as the kernel holds them",
    "use_ino": "inodes are always stable",
    "readdir_ino": "inodes are always stable",
    "hard_remove": "mounts are read-only",
    "atomic_o_trunc": "mounts are read-only",
    "no_remote_lock": "mounts are read-only",
    "intr": _KERNEL,
    "large_read": "the kernel asks for up to 1 MiB at once",
    "splice_read": "the kernel reads the cache directly",
    "splice_write": "the kernel reads the cache directly",
    "splice_move": "the kernel reads the cache directly",
    "no_symlink": "objects are never links",
    "suid": "never set",
    "dev": "never set",
    "exec": "files have the mount's modes",
    "noexec": "use --file-mode: files are not executable by default",
    "atime": "access times are never kept",
    "relatime": "access times are never kept",
    "async": "reads are always sent in parallel",
    "sync": "mounts are read-only",
    "debug": "PENSTOCK_LOG sets the log level",
    "metrics_port": "`penstock stats` shows the metrics",
    "uri": "mountPoint names the source",
    "root_ns": _PROGRAM,
    "credential_provider": "keys come from options and encryptOptions",
    "logger_level": "PENSTOCK_LOG sets the log level",
}

_Words = list[tuple[str, str]]  # kernel options, and where each is written


@dataclass(slots=True)
class Choices:
    """Our options and settings, each with the path in the manifest where it is written."""

    options: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    fields: dict[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    store: Written = field(default_factory=Written)  # for mounts of any scheme


def is_mount_option(kind: str, name: str) -> bool:
    """Whether the tables of a runtime have this name, acted on or not."""
    return (
        find_setting(kind, name) is not None
        or has_name(kind, name)
        or name in REFUSED
        or _is_kernel_option(name)
    )


def choose(runtime: Runtime, mount_options: Written, report: Report) -> Choices:
    """Translate a runtime's settings. `mount_options` stand beside a store's options."""
    choices, words = Choices(), _Words()
    if isinstance(runtime, PenstockRuntime):
        for name, text in runtime.spec.options.items():
            path = f"spec.options.{name}"
            if _is_kernel_option(name) and name not in OPTIONS:
                words.append((_word(name, text), path))
            else:
                choices.options[name] = (text, path)
        choices.fields.update(_kernel_fields(words, report))
        return choices
    written = _settings(runtime).over(mount_options)
    for name in written.values:
        _translate(runtime.kind, name, written, choices, words, report)
    for number, word, of_kernel in _split_args(getattr(runtime.spec.fuse, "args", [])):
        path = f"spec.fuse.args.{number}"
        if of_kernel:
            words.append((word, path))
        else:
            report.no_effect(path, "it is an argument of the runtime's own FUSE program")
    unknown = _THIN if runtime.kind == "ThinRuntime" else None
    choices.fields.update(_kernel_fields(words, report, unknown=unknown))
    return choices


def _settings(runtime: Runtime) -> Written:
    """Merge the client's, the worker's and the common settings, in this order, as Fluid does."""
    spec: Any = runtime.spec
    name = "options" if runtime.kind in ("JuiceFSRuntime", "ThinRuntime") else "properties"
    written = Written.at(f"spec.{name}", getattr(spec, name, None))
    for component in ("worker", "fuse"):
        given = getattr(getattr(spec, component), name, None)
        written = Written.at(f"spec.{component}.{name}", given).over(written)
    return written


def _translate(
    kind: str, name: str, written: Written, choices: Choices, words: _Words, report: Report
) -> None:
    text, path = written.values[name], written.paths[name]
    # An address inside a pod. On this machine two data sets could not have the same.
    in_pod = kind == "JuiceFSRuntime" and name == "metrics"
    if (setting := find_setting(kind, name)) is not None:
        _apply(setting, written, choices, words, report)
    elif kind != "JuiceFSRuntime" and stores.family_of(name) is not None:
        choices.store = written.only([name]).over(choices.store)
    elif name in REFUSED:
        raise SpecProblem(path, f"{name} has no effect", hint=REFUSED[name])
    elif kind in ("JuiceFSRuntime", "ThinRuntime") and _is_kernel_option(name) and not in_pod:
        words.append((_word(name, text), path))
    elif not has_name(kind, name) and (meant := misspelled(name, names_of(kind))) is not None:
        raise SpecProblem(path, f"{name} is not a setting", hint=f"did you mean {meant}?")
    elif (reason := why_unused(kind, name)) is not None:
        report.no_effect(path, reason)
    else:
        hint = did_you_mean(name, names_of(kind), LISTED)
        raise SpecProblem(path, f"{name} is not a setting of {kind}", hint=hint)


def _apply(
    setting: Setting, written: Written, choices: Choices, words: _Words, report: Report
) -> None:
    text, path = written.values[setting.name], written.paths[setting.name]
    try:
        converted = setting.convert(text, written.values)
    except OptionError as error:
        raise SpecProblem(path, str(error), hint=error.hint) from error
    if isinstance(converted, Unused):
        report.no_effect(path, converted.reason)
        return
    if isinstance(converted, Adjusted):
        report.note(f"{path}: {converted.text} is used instead of {text}: {converted.why}")
        converted = converted.text
    if setting.options == (KERNEL,):
        words += [(word, path) for word in converted.split(",") if word]
        return
    for option in setting.options:
        if option in choices.options:
            report.no_effect(path, f"{choices.options[option][1]} sets it already")
        else:
            choices.options[option] = (converted, path)


def _split_args(args: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield each option, with the index of its argument and whether it is a kernel option.

    Skips `fuse`, the first argument of Alluxio's program.
    """
    pending = ""
    for number, arg in enumerate(args):
        if pending:
            words, pending = arg, ""
        elif arg in ("-o", "--fuse-opts"):
            pending = arg
            continue
        elif arg.startswith("--fuse-opts="):
            words = arg.removeprefix("--fuse-opts=")
        elif arg.startswith("-o"):
            words = arg.removeprefix("-o").removeprefix("=")
        else:
            if arg != "fuse":
                yield number, arg, False
            continue
        for word in words.split(","):
            if word.strip():
                yield number, word.strip(), True


def _kernel_fields(
    words: _Words, report: Report, *, unknown: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Parse kernel options to fields of MountSettings.

    `unknown` is the reason why unknown options have no effect; without it they are refused.
    """
    found: dict[str, tuple[Any, str]] = {}
    for word, path in words:
        name = word.partition("=")[0]
        if name in ALWAYS and "=" not in word:
            continue
        if (reason := KERNEL_REFUSED.get(name) or ELSEWHERE.get(name)) is not None:
            report.no_effect(path, f"{name}: {reason}")
        elif name in known_names():
            try:
                fields = parse_kernel_options((word,))
            except OptionError as error:
                raise SpecProblem(path, str(error), hint=error.hint) from error
            found.update({field: (value, path) for field, value in fields.items()})
        elif unknown is not None:
            report.no_effect(path, f"{name}: {unknown}")
        else:
            hint = did_you_mean(name, (*ALWAYS, *KERNEL_REFUSED, *ELSEWHERE, *known_names()))
            raise SpecProblem(path, f"{name} is not an option of a mount", hint=hint)
    return found


def _word(name: str, text: str) -> str:
    return f"{name}={text}" if text else name


def _is_kernel_option(name: str) -> bool:
    return name in ALWAYS or name in KERNEL_REFUSED or name in known_names()
