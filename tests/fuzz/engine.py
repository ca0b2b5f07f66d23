"""python -m tests.fuzz.engine TARGET SECONDS FOLDER: one target, in a process of its own.

atheris (libFuzzer) follows the branches that an input takes, keeps those that take new ones in
FOLDER/corpus, and stops at the first finding, which it leaves in FOLDER. It never returns. Where
there is no atheris, random changes of valid inputs take its place (`blind`), and say the same.
"""

import os
import sys
from pathlib import Path

try:
    import atheris
except ImportError:  # it has wheels for x86-64 only, and none for Python 3.14
    atheris = None

if atheris is not None:
    # Before anything of it is imported: what is instrumented is the byte code.
    with atheris.instrument_imports(include=["penstock", "html", "_markupbase", "email"]):
        from tests.fuzz.targets import TARGETS
else:
    from tests.fuzz.targets import TARGETS

from tests.fuzz import blind

_HANGS_AFTER_S = 20
_MOST_MEMORY_MB = 1024  # of the whole process, about ten times what it needs
_LONGEST_INPUT_BYTES = 1 << 16


def main() -> None:
    name, seconds, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    target = TARGETS[name]
    if atheris is None:
        blind.run(target, seconds, folder)
        return
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if len(word) <= 64))
    place = Path(os.environ["TMPDIR"])  # its parent removes it: libFuzzer ends this process
    with target.open(place) as check:
        options = {
            "max_total_time": seconds,
            "timeout": _HANGS_AFTER_S,
            "rss_limit_mb": _MOST_MEMORY_MB,
            "max_len": _LONGEST_INPUT_BYTES,
            "artifact_prefix": f"{folder}/",
            "print_final_stats": 1,
        }
        if words.stat().st_size:
            options["dict"] = words
        flags = [f"-{option}={value}" for option, value in options.items()]
        once = Path(__file__).with_name("regressions") / name
        folders = [str(one) for one in (corpus, once) if one.is_dir()]
        atheris.Setup([sys.argv[0], *flags, *folders], check)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
