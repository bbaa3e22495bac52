"""Is there an advisory about a locked version? `make audit` asks a database of advisories, through pip-audit.

pip-audit (https://pypi.org/project/pip-audit/) is kept by the Python Packaging Authority. It asks the package index's
own database, or OSV's where it is told so. This program adds one thing: pip-audit says "no known vulnerabilities" and
exits 0 for a package of which the database knows nothing; here that is no verdict.

Exit status: 0 every package was judged, and no advisory is known; 1 advisories; 2 something, or all, was not judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CLEAN, ADVISORIES, NOT_JUDGED = 0, 1, 2
MOST_NAMED = 10


def main(arguments: Sequence[str]) -> int:
    """Raises nothing: what pip-audit could not do is told, and is an exit status."""
    locks = [part for path in sorted(HERE.glob("*.txt")) for part in ("--requirement", str(path))]
    program = Path(sys.executable).with_name("pip-audit")
    command = [str(program), "--disable-pip", "--progress-spinner=off", "--format=json", *locks, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        sys.stderr.write(f"audit: the database of advisories could not be asked, so nothing was judged: {reason}\n")
        return NOT_JUDGED
    lines, status = verdict(report)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return status


def verdict(report: dict[str, Any]) -> tuple[list[str], int]:
    """What to print of pip-audit's report, and the exit status."""
    packages = {(each["name"], each.get("version", "")): each for each in report.get("dependencies", [])}
    skipped = sorted(name for (name, _), each in packages.items() if "skip_reason" in each)
    found = [line for each in packages.values() for line in _advisories(each)]
    judged = len(packages) - len(skipped)
    lines = [*found, f"audit: {judged} of {len(packages)} packages judged, {len(found)} advisories"]
    if skipped:
        more = f" and {len(skipped) - MOST_NAMED} more" if len(skipped) > MOST_NAMED else ""
        lines.append(f"audit: the database does not know {', '.join(skipped[:MOST_NAMED])}{more}: not judged")
    if found:
        return lines, ADVISORIES
    return lines, NOT_JUDGED if skipped or not packages else CLEAN


def _advisories(package: dict[str, Any]) -> Iterator[str]:
    for each in package.get("vulns", []):
        mended = ", ".join(each.get("fix_versions", [])) or "no version yet"
        names = " ".join([each["id"], *each.get("aliases", [])])
        yield f"{package['name']} {package['version']}: {names}: mended in {mended}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
