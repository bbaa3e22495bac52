"""`weir doctor --production` as a command, in a copy of the example."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from loadtests.cluster.processes import child_environment
from loadtests.paths import ROOT


def test_the_example_is_dangerous_only_for_what_has_to_be_filled_in(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "deploy" / "examples" / "vllm", tmp_path / "fleet")
    shutil.copy(folder / "router.env", folder / ".env")
    command = [sys.executable, "-m", "services.cli", "doctor", "--production"]
    environment = child_environment({"PYTHONPATH": str(ROOT), "COLUMNS": "160"})
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    of_the_machine = ("open files", "processor", "memory", "backlog")
    failed = [line.split(None, 1)[1] for line in done.stdout.splitlines() if line.strip().startswith("fail ")]
    own = [line for line in failed if not line.startswith(of_the_machine)]
    assert [line.split("  ")[0] for line in own] == ["API keys", "admin"], done.stdout
    assert "→ set ADMIN_TOKEN" in done.stdout
    assert os.fspath(folder) not in done.stdout
