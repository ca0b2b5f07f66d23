"""What `make dist` builds: a wheel and an sdist, which install and run in an empty environment."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock.release import __version__

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # builds, and installs twice


def run(*command: str | Path, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run(
        [str(one) for one in command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**clean, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), **environment},
        timeout=800,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


def test_both_hold_what_an_installation_needs_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    assert wheel.name == f"penstock-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = ROOT / "src"
    written = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".generated-" not in str(path)
    }
    assert {name for name in names if name.startswith("penstock/")} == written
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "constraints.txt", "LICENSE", "hatch_build.py"} <= in_sdist
    assert not any(name.startswith((".venv", "dist", "build/")) for name in in_sdist)


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_each_installs_and_runs_in_an_empty_environment(
    dist: Path, tmp_path: Path, kind: str
) -> None:
    (archive,) = dist.glob(kind)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", archive)
    penstock, state = binaries / "penstock", {"PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    assert run(penstock, "--version", **state) == f"penstock {__version__}\n"
    assert "Unit" in run(penstock, "serve", "--unit", **state)
    man = (tmp_path / "venv/share/man/man1/penstock.1").read_text()
    assert man == (ROOT / "docs/reference/penstock.1").read_text()
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "file").write_text("what it holds")
    run(penstock, "mount", f"file://{source}", mountpoint, "-b", **state)
    try:
        assert (mountpoint / "file").read_text() == "what it holds"
    finally:
        run(penstock, "umount", mountpoint, **state)
    where = run(binaries / "python", "-c", "import penstock; print(penstock.__file__)")
    assert where.startswith(str(tmp_path / "venv"))
