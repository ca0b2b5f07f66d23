"""A log in parts, as `penstock ui` shows it."""

import os
from pathlib import Path

import pytest

from penstock.api.jobs import TrainingJob
from penstock.api.log_parts import LogPart, read_log
from penstock.jobs.job_folder import job_folder, log_path


@pytest.fixture
def log(state: Path) -> Path:
    path = log_path(job_folder(state, "u"), "net-worker-0")
    path.parent.mkdir(parents=True)
    return path


def read(instance: str | None = None, **options: int) -> LogPart:
    one = {"name": "net-worker-0", "role": "worker"}
    return read_log(
        TrainingJob(
            {
                "kind": "TrainingJob",
                "metadata": {"name": "net", "namespace": "default", "uid": "u"},
                "status": {"phase": "RUNNING", "instances": [one]},
            }
        ),
        instance,
        **options,
    )


def test_parts_continue_each_other_in_whole_lines(log: Path) -> None:
    assert read() == LogPart("", "", 0, begins_anew=True)  # nothing has been printed
    log.write_bytes(b"one\ntw")
    first = read("worker-0")
    assert first == LogPart("one\n", "tw", 4, begins_anew=True)
    log.write_bytes(b"one\ntwo\nthree\n")
    assert read(start=first.end) == LogPart("two\nthree\n", "", 14, begins_anew=False)
    assert read(start=14) == LogPart("", "", 14, begins_anew=False)


def test_a_large_log_begins_with_its_last_whole_lines(log: Path) -> None:
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    part = read(most_bytes=22)
    assert part == LogPart("line 998\nline 999\n", "", log.stat().st_size, begins_anew=True)
    # A reader that is far behind begins anew; one that is not gets part after part.
    assert read(start=0, most_bytes=22).begins_anew
    assert read(start=9000 - 110 - 27, most_bytes=22).begins_anew is False
    log.write_bytes(b"x" * 100)
    assert read(most_bytes=40) == LogPart("", "", 100, begins_anew=True)
    assert read(start=60, most_bytes=40) == LogPart("x" * 40, "", 100, begins_anew=False)


def test_a_log_that_was_cut_begins_anew(log: Path) -> None:
    log.write_bytes(b"one\n")
    assert read(start=100) == LogPart("one\n", "", 4, begins_anew=True)


def test_what_a_terminal_would_not_show_is_left_out(log: Path) -> None:
    log.write_bytes(
        b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(Bplain\r\n"
        b" 10%|#\r 90%|####\rdone\nbad \xff byte\n\r 50%|##\r"
    )
    part = read()
    assert part.text == "red plain\ndone\nbad \ufffd byte\n"
    assert part.rest == " 50%|##"


def test_secrets_are_redacted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecretkey")
    log.write_bytes(
        b"key topsecretkey, AKIAIOSFODNN7EXAMPLE\n?X-Amz-Signature=abc&a=1 topsecretkey"
    )
    part = read()
    assert part.text == "key …, …\n"
    assert part.rest == "?X-Amz-Signature=…&a=1 …"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in part.text + part.rest
