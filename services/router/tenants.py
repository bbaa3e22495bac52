"""Who is asking. Everything that a tenant is and may, in one record; two ways to find it.

    FileTenants   from the key in `Authorization: Bearer KEY`, and from nothing else. What a header or a body says
                  about a tenant is not believed, not even in part.
    LabTenants    from the name that the client gives: X-Tenant, or the body's `tenant`. For a network in which nobody
                  gains by lying (`exposure.py`). Keys are accepted and ignored.

A tenant is state, and a metric label, so the set is closed in both: by the file, and in the lab by `max_names`, after
which all others share `other`. An invented identity costs nothing and gains nothing, a hundred thousand of them too.

Records are never changed, only replaced: what a request holds stays as it was at the door, through every reload.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from services.core.account import Bounds, ClassSpec, TenantSpec
from services.router import tenantsfile
from services.router.keys import KeyRing, bearer
from services.router.rates import Rate
from services.router.tenantsfile import DEFAULT_CLASS, RateEntry, TenantEntry, TenantsFile
from services.runtime.errors import BadInput, Unauthorized

OTHER = "other"
DEMO = "demo"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

ReadHeader = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant, as the router knows it. `id` is its name in the core, in metrics and in cache keys."""

    id: str
    class_name: str = DEFAULT_CLASS
    slo_ms: float | None = None
    """Its deadline where a request names none; None: DEFAULT_SLO_MS."""
    degrade: bool = False
    """Whether its answers may be cut under load."""
    models: frozenset[str] | None = None
    """Which it may use; None: all."""
    rate: Rate | None = None
    paused: bool = False
    """Held back by an operator."""

    def allows(self, model: str) -> bool:
        """Whether it may use this model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Reload:
    """What another file came to: who is new, gone or different."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Tenants:
    """Those who are known by name. How a request finds its own is left to the two below."""

    def __init__(self, known: dict[str, Tenant]) -> None:
        self._known = known

    def identify(self, header: ReadHeader, named: str | None) -> Tenant:
        """Whose request this is, by its headers and the name in its body."""
        return self.by_header(header) or self.by_body(named)

    def by_header(self, header: ReadHeader) -> Tenant | None:
        """Whose request this is, before its body is looked at. None: only the body can tell."""
        raise NotImplementedError

    def by_body(self, named: str | None) -> Tenant:
        """Whose request it is that its headers do not tell."""
        raise NotImplementedError

    def specs(self) -> list[TenantSpec]:
        """What the scheduler has to know of each tenant. Whoever is not among them is a `stranger`."""
        return []

    def classes(self) -> tuple[ClassSpec, ...]:
        """The classes there are."""
        return (ClassSpec(DEFAULT_CLASS),)

    def ids(self) -> list[str]:
        """All names that a metric may carry from now on, `other` aside."""
        return [id for id in self._known if id != OTHER]

    def get(self, id: str) -> Tenant | None:
        """One of them, by name, for the operator."""
        return self._known.get(id)

    def pause(self, id: str, paused: bool = True) -> bool:
        """Hold a tenant back from its next request on. False when nobody is known by this name."""
        tenant = self._known.get(id)
        if tenant is None:
            return False
        self._known[id] = replace(tenant, paused=paused)
        return True

    def resume(self, id: str) -> bool:
        """Let it go on."""
        return self.pause(id, paused=False)

    def __repr__(self) -> str:
        paused = sum(tenant.paused for tenant in self._known.values())
        return f"<{type(self).__name__} {len(self._known)}, {paused} paused>"


class LabTenants(Tenants):
    """Tenants by their word alone. Besides `other`, the first `max_names` that appear are kept apart."""

    def __init__(self, max_names: int, tenant_rps: float = 0.0) -> None:
        self._max_names = max_names
        self._tenant_rps = tenant_rps
        super().__init__({name: self._new(name) for name in (OTHER, DEMO)})

    def by_header(self, header: ReadHeader) -> Tenant | None:
        """The tenant of `X-Tenant`. Raises BadInput."""
        said = header(b"x-tenant")
        return None if said is None else self._by_name(said.decode("latin-1"), "X-Tenant")

    def by_body(self, named: str | None) -> Tenant:
        """The tenant that the body names, else demo. Raises BadInput."""
        return self._known[DEMO] if named is None else self._by_name(named, "tenant")

    def _by_name(self, name: str, param: str) -> Tenant:
        tenant = self._known.get(name)
        if tenant is not None:
            return tenant
        if not _NAME.fullmatch(name):
            raise BadInput(f"{param}: a tenant is 1 to 64 letters, digits, dots, dashes or underscores", param)
        if len(self._known) > self._max_names:
            return self._known[OTHER]
        tenant = self._known[name] = self._new(name)
        return tenant

    def _new(self, name: str) -> Tenant:
        return Tenant(name, degrade=True, rate=Rate(self._tenant_rps) if self._tenant_rps else None)


class FileTenants(Tenants):
    """Tenants of TENANTS_FILE, by their keys. Raises tenantsfile.Faulty.

    `queue_requests` and `queue_bytes` may wait for each of them; the file may say otherwise of the first.
    """

    def __init__(
        self, path: Path, queue_requests: int = 64, max_slo_ms: float = inf, *, queue_bytes: float = inf
    ) -> None:
        self._path = path
        self._queue_requests = queue_requests
        self._queue_bytes = queue_bytes
        self._max_slo_ms = max_slo_ms
        self._file = self.read()
        self._ring = KeyRing(self._file.owners)
        super().__init__({entry.id: _tenant(self._file, entry) for entry in self._file.tenants})

    def by_header(self, header: ReadHeader) -> Tenant:
        """The tenant whose key this is. Raises Unauthorized."""
        key = bearer(header(b"authorization"))
        if key is None:
            raise Unauthorized("a key is needed: send `Authorization: Bearer KEY`")
        owner = self._ring.owner(key)
        if owner is None:
            raise Unauthorized("this key is not known here")
        return self._known[owner]

    def specs(self, file: TenantsFile | None = None) -> list[TenantSpec]:
        """Weight, class and bounds of every tenant of the file, or of another one that is to come into force."""
        file = file or self._file
        return [self._spec(file, entry) for entry in file.tenants]

    def classes(self, file: TenantsFile | None = None) -> tuple[ClassSpec, ...]:
        """The classes of the file, or of another one, in its order."""
        return tuple(ClassSpec(entry.name, entry.weight, entry.floor) for entry in (file or self._file).classes)

    def read(self) -> TenantsFile:
        """Read and judge the file. It changes nothing here, so it may run in a thread. Raises tenantsfile.Faulty."""
        return tenantsfile.read(self._path, self._max_slo_ms)

    def adopt(self, file: TenantsFile) -> Reload:
        """Go by this file from now on. Who stays keeps its pause, and its rate's fill unless that changed."""
        before = {entry.id: (entry, self._known[entry.id]) for entry in self._file.tenants}
        after = {entry.id: entry for entry in file.tenants}
        self._file, self._ring = file, KeyRing(file.owners)
        self._known = {id: _tenant(file, entry, *before.get(id, ())) for id, entry in after.items()}
        return Reload(
            joined=tuple(id for id in after if id not in before),
            left=tuple(id for id in before if id not in after),
            changed=tuple(id for id, entry in after.items() if id in before and entry != before[id][0]),
        )

    def _spec(self, file: TenantsFile, entry: TenantEntry) -> TenantSpec:
        queue = entry.queue
        bounds = Bounds(
            requests=self._queue_requests if queue.requests is None else queue.requests,
            cost_tokens=inf if queue.cost_tokens is None else queue.cost_tokens,
            bytes=self._queue_bytes,
        )
        return TenantSpec(entry.id, bounds, weight=entry.weight, class_name=file.class_of(entry))


def _tenant(
    file: TenantsFile, entry: TenantEntry, before: TenantEntry | None = None, known: Tenant | None = None
) -> Tenant:
    """A tenant as its entry says; of what it was `before` it keeps a rate that did not change, and its pause."""
    kept = before is not None and before.rate == entry.rate
    return Tenant(
        entry.id,
        class_name=file.class_of(entry),
        slo_ms=entry.slo_ms,
        degrade=entry.degrade,
        models=entry.allowed_models,
        rate=known.rate if kept and known is not None else _rate(entry.rate),
        paused=known is not None and known.paused,
    )


def _rate(entry: RateEntry | None) -> Rate | None:
    return None if entry is None else Rate(entry.requests_per_s, entry.tokens_per_s)
