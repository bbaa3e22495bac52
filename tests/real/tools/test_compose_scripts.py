"""The scripts in docker-compose.yml, as the shell runs them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

OWN_SECRETS = {
    "router": {"ADMIN_TOKEN"},
    "governor": {"GOVERNOR_TOKENS", "GOVERNOR_UPSTREAM_KEY"},
    "retrieval": {"CACHE_KEY_SECRET"},
    "seed": {"CACHE_KEY_SECRET"},
    "migrate": {"CACHE_KEY_SECRET"},
    "model": {"HF_TOKEN"},
    "secrets": {
        "INTERNAL_TOKEN",
        "POSTGRES_PASSWORD",
        "POSTGRES_SERVICE_PASSWORD",
        "POSTGRES_MONITOR_PASSWORD",
        "GRAFANA_PASSWORD",
    },
}


def make_secrets(folder: Path, **given: str) -> dict[str, str]:
    """The command itself, in this folder: what it leaves there."""
    databases = dict.fromkeys(("database", "database-service", "database-monitor"), "password")
    names = {"internal": "token", **databases, "grafana": "password"}
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    none = dict.fromkeys(OWN_SECRETS["secrets"], "")
    script = SERVICES["secrets"]["command"][0].replace("$$", "$")
    env = {"PATH": "/usr/bin:/bin", "FOLDER": str(folder), **none, **given}
    subprocess.run([*SERVICES["secrets"]["entrypoint"], script], env=env, check=True)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"token", "password"}
    assert all((folder / name / file).stat().st_mode & 0o777 == 0o644 for name, file in names.items())
    return {name: (folder / name / file).read_text() for name, file in names.items()}


def test_secrets_are_made_once_each_another_and_kept(tmp_path):
    made = make_secrets(tmp_path)
    assert all(re.fullmatch(r"[0-9a-f]{48}", secret) for secret in made.values())
    assert len(set(made.values())) == 5
    assert make_secrets(tmp_path) == made
    (tmp_path / "other").mkdir()
    assert not set(make_secrets(tmp_path / "other").values()) & set(made.values())


def test_a_secret_that_is_set_is_the_one_that_counts(tmp_path):
    made = make_secrets(tmp_path)
    given = make_secrets(tmp_path, POSTGRES_PASSWORD="mine, and 'odd'", INTERNAL_TOKEN="t0ken-of-sixteen-characters")
    assert given == {**made, "database": "mine, and 'odd'", "internal": "t0ken-of-sixteen-characters"}


@pytest.mark.parametrize(
    ("model_id", "fetched"),
    [("tiny", False), ("tiny-30m", False), ("/models/mine", False), ("./mine", False), ("org/model", True)],
)
def test_what_is_no_name_on_the_hub_is_not_fetched(model_id, fetched, tmp_path):
    """The command itself, with `hf` replaced by a program that says what it was given."""
    (tmp_path / "hf").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "hf").chmod(0o755)
    script = SERVICES["model"]["command"][0].replace("$$", "$")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL_ID": model_id, "MODEL_REVISION": "r1", "MODEL_CACHE_DIR": "/m"}
    done = subprocess.run(
        [*SERVICES["model"]["entrypoint"], script], env=env, capture_output=True, text=True, check=True
    )
    expected = f"download {model_id} --revision r1 --cache-dir /m"
    assert done.stdout.startswith(expected) if fetched else done.stdout == ""


@pytest.mark.parametrize(
    ("running", "given", "asked", "slowed"),
    [
        ("", "", "http://worker-0:8010,http://worker-1:8010", "simulated"),
        ("worker-gpu", "", "http://worker-gpu:8010", "none"),
        ("worker-gpu worker-torch", "", "http://worker-gpu:8010,http://worker-torch:8010", "none"),
        ("worker-gpu", "http://mine:1", "http://mine:1", "simulated"),
    ],
)
def test_the_workers_that_are_asked_are_those_whose_profile_runs(running, given, asked, slowed, tmp_path):
    """The command itself, with `getent` replaced by a program that knows these names."""
    (tmp_path / "getent").write_text(
        f'#!/bin/sh\nfor each in {running}; do [ "$each" != "$2" ] || exit 0; done; exit 2\n'
    )
    (tmp_path / "getent").chmod(0o755)
    words = [word.replace("$$", "$") for word in SERVICES["router"]["entrypoint"]]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WORKERS": given, "STORM_FAULT_URLS": "simulated"}
    told = ["sh", "-c", 'echo "$WORKERS $STORM_FAULT_URLS"']
    done = subprocess.run([*words, *told], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{asked} {slowed}\n"
