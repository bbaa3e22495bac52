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
from services.router.tenantsfile import DEFAULT_CLASS, TenantEntry, TenantsFile
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
    lower_classes: frozenset[str] = frozenset()

    def allows(self, model: str) -> bool:
        """Whether it may use this model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Reload:
    """What reading the file again came to: who is new, gone or different; or the faults, and then nothing changed."""

    faults: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Tenants:
    """Those who are known by name. How a request finds its own is left to the two below."""

    def __init__(self, known: dict[str, Tenant]) -> None:
        self._known = known

    def identify(self, header: ReadHeader, named: str | None) -> Tenant:
        """Whose request this is, by its headers and the name in its body."""
        raise NotImplementedError

    def specs(self) -> list[TenantSpec]:
        """What the scheduler has to know of each tenant. Whoever is not among them is a `stranger`."""
        return []

    def classes(self) -> tuple[ClassSpec, ...]:
        """The classes there are, for as long as the router runs."""
        return (ClassSpec(DEFAULT_CLASS),)

    def lower_class(self, tenant: Tenant, asked: str) -> str | None:
        """The class that was asked for, if it is below the tenant's own.

        None for a higher one, and for one that does not exist here, since the names come from other gateways too.
        """
        return asked if asked in tenant.lower_classes else None

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

    def reload(self) -> Reload:
        """Read again what can be read again."""
        return Reload()

    def __repr__(self) -> str:
        paused = sum(tenant.paused for tenant in self._known.values())
        return f"<{type(self).__name__} {len(self._known)}, {paused} paused>"


class LabTenants(Tenants):
    """Tenants by their word alone. Besides `other`, the first `max_names` that appear are kept apart."""

    def __init__(self, max_names: int, tenant_rps: float = 0.0) -> None:
        self._max_names = max_names
        self._tenant_rps = tenant_rps
        super().__init__({name: self._new(name) for name in (OTHER, DEMO)})

    def identify(self, header: ReadHeader, named: str | None) -> Tenant:
        """The tenant of `X-Tenant`, else of the body, else demo. Raises BadInput."""
        said = header(b"x-tenant")
        if said is not None:
            return self._by_name(said.decode("latin-1"), "X-Tenant")
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

    def identify(self, header: ReadHeader, named: str | None) -> Tenant:
        """The tenant whose key this is. Raises Unauthorized."""
        key = bearer(header(b"authorization"))
        if key is None:
            raise Unauthorized("a key is needed: send `Authorization: Bearer KEY`")
        owner = self._ring.owner(key)
        if owner is None:
            raise Unauthorized("this key is not known here")
        return self._known[owner]

    def specs(self) -> list[TenantSpec]:
        """Weight, class and bounds of every tenant of the file."""
        return [self._spec(entry) for entry in self._file.tenants]

    def classes(self) -> tuple[ClassSpec, ...]:
        """The classes of the file, in its order."""
        return tuple(ClassSpec(entry.name, entry.weight, entry.floor) for entry in self._file.classes)

    def read(self) -> TenantsFile:
        """Read and judge the file. It changes nothing here, so it may run in a thread. Raises tenantsfile.Faulty."""
        return tenantsfile.read(self._path, self._max_slo_ms)

    def reload(self) -> Reload:
        """Read the file again. With a fault in it, all stays as it was."""
        try:
            return self.adopt(self.read())
        except tenantsfile.Faulty as error:
            return Reload(faults=error.faults)

    def adopt(self, file: TenantsFile) -> Reload:
        """Go by this file from now on. Who stays keeps its pause, and its rate's fill unless that changed."""
        if file.classes != self._file.classes:
            return Reload(faults=("classes: they cannot change while the router runs; restart it for that",))
        before = {entry.id: entry for entry in self._file.tenants}
        after = {entry.id: entry for entry in file.tenants}
        changed = [id for id, entry in after.items() if id in before and entry != before[id]]
        kept = {id: self._known[id] for id in after if id in before}
        for id in changed:
            kept[id] = _changed(kept[id], before[id], file, after[id])
        self._file, self._ring = file, KeyRing(file.owners)
        self._known = {id: kept[id] if id in kept else _tenant(file, entry) for id, entry in after.items()}
        return Reload(
            joined=tuple(id for id in after if id not in before),
            left=tuple(id for id in before if id not in after),
            changed=tuple(changed),
        )

    def _spec(self, entry: TenantEntry) -> TenantSpec:
        queue = entry.queue
        bounds = Bounds(
            requests=self._queue_requests if queue.requests is None else queue.requests,
            cost_tokens=inf if queue.cost_tokens is None else queue.cost_tokens,
            bytes=self._queue_bytes,
        )
        return TenantSpec(entry.id, bounds, weight=entry.weight, class_name=self._file.class_of(entry))


def _tenant(file: TenantsFile, entry: TenantEntry) -> Tenant:
    class_name = file.class_of(entry)
    weights = {named.name: named.weight for named in file.classes}
    return Tenant(
        entry.id,
        class_name=class_name,
        slo_ms=entry.slo_ms,
        degrade=entry.degrade,
        models=entry.allowed_models,
        rate=None if entry.rate is None else Rate(entry.rate.requests_per_s, entry.rate.tokens_per_s),
        lower_classes=frozenset(name for name, weight in weights.items() if weight < weights[class_name]),
    )


def _changed(tenant: Tenant, before: TenantEntry, file: TenantsFile, after: TenantEntry) -> Tenant:
    new = _tenant(file, after)
    return replace(new, paused=tenant.paused, rate=tenant.rate if after.rate == before.rate else new.rate)
