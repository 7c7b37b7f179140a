"""The source distribution holds what the tests read, and CI runs `.ci/run` from the oldest Python to the newest."""

import pathlib
import re
import subprocess
import tomllib

import pytest

import tape
from tape import layout

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INCLUDED = set(re.findall(r"^(?:graft|include) (\S+)$", (ROOT / "MANIFEST.in").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = [(ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8") for name in ("ci", "nightly")]


def test_the_source_distribution_holds_the_whole_tree():
    assert {name for name in INCLUDED if (ROOT / name).exists()} == INCLUDED
    if not (ROOT / ".git").exists():
        pytest.skip("unpacked from a source distribution")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    by_itself = {"pyproject.toml", "MANIFEST.in"}
    assert {line.split("/")[0] for line in tracked.splitlines()} - INCLUDED == by_itself


def test_there_is_one_version():
    version = PROJECT["project"]["version"]
    assert version == tape.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == version
    assert re.search(r"^license: (.*)$", citation, re.MULTILINE)[1] == PROJECT["project"]["license"]
    head = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert head == "Unreleased" or head.startswith(version)


def test_every_job_of_ci_runs_what_can_be_run_by_hand():
    parts = re.search(r"^([a-z |]+)\) ;;$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)[1].split(" | ")
    assert [re.findall(r"run: (.*)", workflow) for workflow in WORKFLOWS] == [[".ci/run ${{ matrix.part }}"]] * 2
    jobs = [job for workflow in WORKFLOWS for job in re.findall(r'python: "([\d.]+)"\n +part: (\w+)', workflow)]
    assert {part for _, part in jobs} == {"floors", "checks", "wheels", "extension", "nightly"} == set(parts) - {"all"}
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert (oldest, "floors") in jobs
    assert (oldest, "checks") in jobs
    assert any(tuple(map(int, python.split("."))) > tuple(map(int, oldest.split("."))) for python, _ in jobs)


def test_the_extension_is_optional_and_its_wheels_are_of_every_python():
    """Without a compiler the rest is installed; a name in ``setup.py`` and one in the loader mean the same file."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert re.search(r'Extension\("tape\._recorder", \["tape/_recorder\.c"\], optional=True\)', setup)
    assert 'os.environ.get("TAPE_RECORDER") == "python"' in setup
    assert (ROOT / "tape" / "_recorder.c").exists()
    oldest = int(PROJECT["project"]["requires-python"].removeprefix(">=3."))
    assert PROJECT["tool"]["cibuildwheel"]["build"].split() == [f"cp3{minor}-*" for minor in range(oldest, 15)]


def test_both_sides_of_the_recorder_have_one_contract():
    source = (ROOT / "tape" / "_recorder.c").read_text(encoding="utf-8")
    assert re.search(r"^#define CONTRACT (\d+)", source, re.MULTILINE)[1] == str(layout.CONTRACT)


def test_what_a_package_reads_is_installed_with_it():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    found = {p for package in ("tape", "interop") for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    files = {p for p in found if p.suffix not in {".py", ".c", ".so", ".pyd"}}
    installed = {
        f for package in {p.parent for p in found if p.name == "__init__.py"} for pattern in data["*"] for f in package.glob(pattern)
    }
    installed |= {
        f for name, patterns in data.items() if name != "*" for pattern in patterns for f in ROOT.joinpath(*name.split(".")).glob(pattern)
    }
    assert files - installed == set()
