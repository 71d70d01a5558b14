"""What users install: the wheel alone runs the demo, and both archives are fit to be published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import deadpool
import deadpool_lab

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def run(*command: object, folder: Path, timeout_s: float = 600.0) -> str:
    done = end_of(*command, folder=folder, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def end_of(*command: object, folder: Path, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools leaves folders beside what it builds."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    tracked = run("git", "ls-files", "-z", folder=ROOT).split("\0")
    for name in filter(None, tracked):
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, source, folder=source)
    return built


@pytest.fixture(scope="module")
def python(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a new environment with the wheel in it. The other packages come from this one by a path; the editable
    install of this tree does not come along, because files that extend the path are not read in such a folder."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    target = folder / "bin" / "python"
    [wheel] = archives.glob("*.whl")
    installer = [sys.executable, "-m", "pip", "--python", target, "install", "--quiet", "--no-deps", "--no-index"]
    run(*installer, wheel, folder=folder)
    return target


def test_archives_are_fit_to_be_published(archives):
    found = sorted(path.name for path in archives.iterdir())
    assert found == [
        f"torch_deadpool-{deadpool.__version__}-py3-none-any.whl",
        f"torch_deadpool-{deadpool.__version__}.tar.gz",
    ]
    run(sys.executable, "-m", "twine", "check", "--strict", *archives.iterdir(), folder=archives)


def test_wheel_says_that_it_is_typed(archives):
    [wheel] = archives.glob("*.whl")
    assert "deadpool/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_installed_command_knows_its_version(python, tmp_path):
    assert run(python.with_name("deadpool"), "--version", folder=tmp_path).split() == ["deadpool", deadpool.__version__]
    home = run(python, "-c", "import deadpool; print(deadpool.__file__)", folder=tmp_path)
    assert str(python.parents[1]) in home


def test_wheel_has_no_test_rigs_and_says_where_they_are(archives, python, tmp_path):
    [wheel] = archives.glob("*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"deadpool"}
    for command in ("sim", "chaos"):
        done = end_of(python.with_name("deadpool"), "lab", command, "--help", folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "torch-deadpool-lab, which is not installed" in done.stderr and "pip install ./lab" in done.stderr


def test_lab_is_of_the_same_version():
    assert deadpool_lab.__version__ == deadpool.__version__


@pytest.mark.thorough
def test_demo_from_the_wheel_shows_that_nothing_was_lost(python, tmp_path):
    said = run(python.with_name("deadpool"), "demo", "--steps", 6, "--out", tmp_path / "figures.json", folder=tmp_path)
    assert "BIT-IDENTICAL" in said and "NOT BIT" not in said
    assert json.loads((tmp_path / "figures.json").read_text())["bit_identical"] is True
