"""The user that PostgreSQL runs as.

PostgreSQL refuses user 0, and its tools refuse a user without a password file entry; both are common in containers. Two
ways out, in this order:

1. **A user namespace** (`unshare --user`): the server sees itself as another user, while every file stays ours. Nothing
   is copied, no permission is widened.
2. **Another user** (root only): `weir`, if it exists, else `nobody`, which other services may run as too. DATA_DIR gets
   mode 0711 so that this user can pass through it, and programs in a private folder are copied beside the data.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from services.cli.child import Identity
from services.cli.errors import LabError

STAND_INS = ("weir", "nobody")  # the first is for PostgreSQL only: `useradd --system weir`
PASS_THROUGH = 0o011


def choose(data: Path) -> Identity:
    """Our own user if possible, else a namespace, else another user. Raises LabError that says what to do."""
    euid = os.geteuid()
    if euid != 0 and _known(euid):
        return Identity()
    stand_in = _stand_in()
    prefix = ("unshare", "--user", f"--map-user={stand_in.pw_uid}", f"--map-group={stand_in.pw_gid}")
    if _works(prefix):
        return Identity(prefix=prefix)
    if euid != 0:
        raise LabError(
            f"PostgreSQL needs a user with a name, user {euid} has none, and user namespaces are not allowed here: "
            "run as a named user, or set POSTGRES_URL to a server of your own."
        )
    _open_for_passing(data.parent)
    closed = _first_closed(data.parent)
    if closed is not None:
        raise LabError(
            "PostgreSQL does not run as root, user namespaces are not allowed here, and the user "
            f"`{stand_in.pw_name}` cannot enter {closed}: set DATA_DIR to a folder that every user can reach, run as a "
            "normal user, or set POSTGRES_URL."
        )
    return Identity(uid=stand_in.pw_uid, gid=stand_in.pw_gid)


def own(folder: Path, identity: Identity) -> None:
    """Give the folder to the server's user, if an earlier run used another one."""
    if os.geteuid() != 0:
        return
    uid, gid = identity.uid or 0, identity.gid or 0
    if folder.stat().st_uid == uid:
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, gid, follow_symlinks=False)


def reachable_programs(programs: Path, stage: Path, identity: Identity) -> Path:
    """The programs, or a copy that the other user may execute."""
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


def _stand_in() -> pwd.struct_passwd:
    for name in STAND_INS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LabError(f"PostgreSQL does not run as root, and there is no user {' or '.join(STAND_INS)}: set POSTGRES_URL.")


def _open_for_passing(folder: Path) -> None:
    """Let other users pass through the folder without listing it; what is in it has its own mode."""
    if folder.exists() and folder.stat().st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | PASS_THROUGH)


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
    """The outermost folder on the path that another user cannot enter; None if there is none."""
    for step in [*reversed(folder.resolve().parents), folder.resolve()]:
        if step.exists() and not step.stat().st_mode & stat.S_IXOTH:
            return step
    return None
