"""Whom PostgreSQL runs as.

PostgreSQL refuses user 0, and its tools refuse a user without an entry in the password file; both are common in
containers. Two ways out, tried in this order:

1. **a user namespace** (`unshare --user`): the server sees itself as `nobody`, while outside every file stays ours.
   Nothing is copied, no permission is widened;
2. **change to `nobody`** (root only): then `nobody` must be able to reach the data folder and to execute the
   programs. A virtual environment in a private folder forbids the second, so the programs are copied beside the data.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from services.lab.child import Identity
from services.lab.errors import LabError

STAND_IN = "nobody"


def choose(data: Path) -> Identity:
    """Ourselves where we may; else a namespace; else `nobody`; else a sentence that says what to do."""
    euid = os.geteuid()
    if euid != 0 and _known(euid):
        return Identity()
    nobody = pwd.getpwnam(STAND_IN)
    prefix = ("unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}")
    if _works(prefix):
        return Identity(prefix=prefix)
    if euid != 0:
        raise LabError(
            f"PostgreSQL needs a user with a name, user {euid} has none, and user namespaces are not allowed here: "
            "run as a named user, or set POSTGRES_URL to a server of your own."
        )
    closed = _first_closed(data.parent)
    if closed is not None:
        raise LabError(
            f"PostgreSQL does not run as root, user namespaces are not allowed here, and `{STAND_IN}` cannot enter "
            f"{closed}: set DATA_DIR to a folder that every user can reach, run as a normal user, or set POSTGRES_URL."
        )
    return Identity(uid=nobody.pw_uid, gid=nobody.pw_gid)


def own(folder: Path, identity: Identity) -> None:
    """Give the folder to whom the server runs as, if an earlier run went the other way."""
    if os.geteuid() != 0:
        return
    uid, gid = identity.uid or 0, identity.gid or 0
    if folder.stat().st_uid == uid:
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, gid, follow_symlinks=False)


def reachable_programs(programs: Path, stage: Path, identity: Identity) -> Path:
    """The programs themselves, or a copy of them that the other user may execute."""
    if identity.uid is None or _first_closed(programs / "bin") is None:
        return programs
    package = programs.parent
    libraries = package.with_name(f"{package.name}.libs")  # found by a path relative to the programs
    copy, partial = stage / "programs", stage / "programs.partial"
    if not copy.exists():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(programs, partial / package.name / programs.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        partial.rename(copy)
    for folder in (stage, copy, copy / package.name):
        folder.chmod(0o755)
    return copy / package.name / programs.name


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _works(prefix: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([*prefix, "true"], capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _first_closed(folder: Path) -> Path | None:
    """The outermost folder on the way to `folder` that another user cannot enter."""
    for step in [*reversed(folder.resolve().parents), folder.resolve()]:
        if step.exists() and not step.stat().st_mode & stat.S_IXOTH:
            return step
    return None
