"""What a release holds: the wheel, the sdist, and that every place states the same version and the same floors."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import excise

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_wheel_holds_the_package_alone(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert "excise/__init__.py" in names
    assert "excise/py.typed" in names
    assert any(name.endswith("templates/report.html") for name in names)
    assert {name.split("/")[0] for name in names} == {"excise", f"excise-{excise.__version__}.dist-info"}
    assert not [name for name in names if re.search(r"test_|\.(npy|npz|parquet|safetensors|png)$", name)]


def test_sdist_can_be_tested(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = archive.getnames()
    for path in (
        "tests/conftest.py",
        "conftest.py",
        "docs/conf.py",
        "examples/README.rst",
        "README.md",
        "CITATION.cff",
        "Makefile",
    ):
        assert f"excise-{excise.__version__}/{path}" in names
    assert not [name for name in names if "/.venv/" in name or "/build/" in name]


def test_one_version():
    assert f"version: {excise.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version = {{{excise.__version__}}}" in (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    assert re.search(
        rf"^## {re.escape(excise.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_minimum_is_the_floor_of_pyproject():
    """requirements/minimum.txt pins exactly the lower bounds of the core and of data, cli and report."""
    extras = PROJECT["optional-dependencies"]
    floors = PROJECT["dependencies"] + [one for extra in ("data", "cli", "report") for one in extras[extra]]
    pins = dict(
        re.findall(
            r"^([A-Za-z0-9_-]+)==(\S+)$",
            (ROOT / "requirements" / "minimum.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    for floor in floors:
        name, version = re.fullmatch(r"([A-Za-z0-9_-]+)>=(\S+)", floor).groups()
        assert name in pins, f"requirements/minimum.txt lacks {name}"
        assert re.sub(r"(\.0)+$", "", pins[name]) == re.sub(r"(\.0)+$", "", version), (
            f"{name}: {pins[name]} is not the floor {version}"
        )


def test_all_means_all():
    everything = set(re.findall(r"[a-z]+", PROJECT["optional-dependencies"]["all"][0].split("[")[1]))
    assert everything == set(PROJECT["optional-dependencies"]) - {"all"}
