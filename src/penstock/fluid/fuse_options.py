"""Arguments of other FUSE programs: `--fuse-opts=kernel_cache,ro` and `-o` lists. Pure.

The words themselves have the meanings that they have on the command line
(penstock.mount_options); those that it refuses have no effect here, since whole files of
arguments are carried over from elsewhere.
"""

from collections.abc import Iterator
from typing import Any, Final

from penstock.errors import OptionError, SpecProblem, did_you_mean
from penstock.fluid.values import Said
from penstock.mount_options import ALWAYS, REFUSED, known_names, parse_kernel_options

_KERNEL = "the kernel decides it"
_PROGRAM = "it is of another FUSE program"

# What libfuse and the FUSE programs of Jindo and JuiceFS take besides.
ELSEWHERE: Final[dict[str, str]] = {
    "negative_timeout": "names that are not there are not kept",
    "congestion_threshold": "it is set with max_background, which is 64",
    "ac_attr_timeout": "pages are dropped by version, when the object changes",
    "noauto_cache": "pages are dropped by version, when the object changes",
    "remember": "inodes are kept as long as the kernel holds them",
    "noforget": "inodes are kept as long as the kernel holds them",
    "use_ino": "inodes are stable by themselves",
    "readdir_ino": "inodes are stable by themselves",
    "hard_remove": "nothing is removed",
    "atomic_o_trunc": "nothing is written",
    "no_remote_lock": "nothing is written",
    "intr": _KERNEL,
    "large_read": "the kernel asks for up to 1 MiB at once",
    "splice_read": "the kernel reads the cache by itself",
    "splice_write": "the kernel reads the cache by itself",
    "splice_move": "the kernel reads the cache by itself",
    "no_symlink": "objects are never links",
    "suid": "never set",
    "dev": "never set",
    "exec": "files have the mount's modes",
    "noexec": "say --file-mode: files cannot be executed by default",
    "atime": "access times are never kept",
    "relatime": "access times are never kept",
    "async": "reads are always sent in parallel",
    "sync": "nothing is written",
    "debug": "PENSTOCK_LOG sets what is logged",
    "metrics_port": "`penstock stats` shows what is measured",
    "uri": "mountPoint says it",
    "root_ns": _PROGRAM,
    "credential_provider": "keys come from options and encryptOptions",
    "logger_level": "PENSTOCK_LOG sets what is logged",
}


def split_args(args: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Each option, the number of the argument that holds it, and whether it is a kernel option.
    `fuse`, with which Alluxio's program begins, is none."""
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


def read_words(
    words: list[tuple[str, str]], said: Said, *, strange: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Words and where each was written, as fields of MountSettings. `strange` is the reason why
    unknown ones have no effect; without one they are refused."""
    found: dict[str, tuple[Any, str]] = {}
    for word, path in words:
        name = word.partition("=")[0]
        if name in ALWAYS and "=" not in word:
            continue
        if (reason := REFUSED.get(name) or ELSEWHERE.get(name)) is not None:
            said.no_effect(path, f"{name}: {reason}")
        elif name in known_names():
            try:
                fields = parse_kernel_options((word,))
            except OptionError as error:
                raise SpecProblem(path, str(error), hint=error.hint) from error
            found.update({field: (value, path) for field, value in fields.items()})
        elif strange is not None:
            said.no_effect(path, f"{name}: {strange}")
        else:
            hint = did_you_mean(name, (*ALWAYS, *REFUSED, *ELSEWHERE, *known_names()))
            raise SpecProblem(path, f"{name} is not an option of a mount", hint=hint)
    return found
