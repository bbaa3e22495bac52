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

from services.contracts.documents import QUOTA_BYTES_HEADER, QUOTA_COUNT_HEADER
from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.router.tenancy import tenantsfile
from services.router.tenancy.keys import KeyRing, bearer
from services.router.tenancy.rates import Rate
from services.router.tenancy.tenantsfile import DEFAULT_CLASS, TenantEntry, TenantsFile
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
    quota: tuple[tuple[bytes, bytes], ...] = ()
    """What it may keep of documents, as headers for retrieval, which counts them."""

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


@dataclass(frozen=True, slots=True)
class Reading:
    """A file, judged and worked up beside the one before it: all that takes long. It holds once it is adopted."""

    file: TenantsFile
    tenants: dict[str, Tenant]
    specs: list[TenantSpec]
    classes: tuple[ClassSpec, ...]
    ring: KeyRing
    same: frozenset[str]
    """Who stands in both files with the same words."""
    same_rate: frozenset[str]


class FileTenants(Tenants):
    """Tenants of TENANTS_FILE, by their keys. Raises tenantsfile.Faulty.

    `queue_requests` and `queue_bytes` may wait for each of them; the file may say otherwise of the first.
    """

    def __init__(
        self, path: Path, queue_requests: int = 64, max_slo_ms: float = inf, *, queue_bytes: float = inf
    ) -> None:
        self._path = path
        self._max_slo_ms = max_slo_ms
        self._bounds = QueueBounds(queue_requests, bytes=queue_bytes)
        self._reading = self._worked_up(None)
        super().__init__(dict(self._reading.tenants))

    def by_header(self, header: ReadHeader) -> Tenant:
        """The tenant whose key this is. Raises Unauthorized."""
        key = bearer(header(b"authorization"))
        if key is None:
            raise Unauthorized("a key is needed: send `Authorization: Bearer KEY`")
        owner = self._reading.ring.owner(key)
        if owner is None:
            raise Unauthorized("this key is not known here")
        return self._known[owner]

    def specs(self) -> list[TenantSpec]:
        """Weight, class and bounds of every tenant of the file."""
        return self._reading.specs

    def classes(self) -> tuple[ClassSpec, ...]:
        """The classes of the file, in its order."""
        return self._reading.classes

    def read(self) -> Reading:
        """Read and judge the file. It changes nothing here, so it may run in a thread. Raises tenantsfile.Faulty."""
        return self._worked_up(self._reading)

    def adopt(self, reading: Reading) -> Reload:
        """Go by this from now on. Who stays keeps its pause, and its rate's fill unless that changed."""
        before, after = self._known, reading.tenants
        self._reading = reading
        self._known = {
            id: before[id] if id in reading.same else _taken_over(tenant, before.get(id), id in reading.same_rate)
            for id, tenant in after.items()
        }
        return Reload(
            joined=tuple(id for id in after if id not in before),
            left=tuple(id for id in before if id not in after),
            changed=tuple(id for id in after if id in before and id not in reading.same),
        )

    def _worked_up(self, before: Reading | None) -> Reading:
        file = tenantsfile.read(self._path, self._max_slo_ms)
        old = {} if before is None else {entry.id: entry for entry in before.file.tenants}
        alike = before is not None and before.file.classes == file.classes
        return Reading(
            file=file,
            tenants={entry.id: _tenant(file, entry) for entry in file.tenants},
            specs=[_spec(file, entry, self._bounds) for entry in file.tenants],
            classes=tuple(ClassSpec(entry.name, entry.weight, entry.floor) for entry in file.classes),
            ring=KeyRing(file.owners),
            same=frozenset(entry.id for entry in file.tenants if alike and entry == old.get(entry.id)),
            same_rate=frozenset(
                entry.id for entry in file.tenants if entry.id in old and entry.rate == old[entry.id].rate
            ),
        )


def _spec(file: TenantsFile, entry: TenantEntry, usual: QueueBounds) -> TenantSpec:
    queue = entry.queue
    bounds = QueueBounds(
        requests=usual.requests if queue.requests is None else queue.requests,
        cost_tokens=usual.cost_tokens if queue.cost_tokens is None else queue.cost_tokens,
        bytes=usual.bytes,
    )
    return TenantSpec(entry.id, bounds, weight=entry.weight, class_name=file.class_of(entry))


def _tenant(file: TenantsFile, entry: TenantEntry) -> Tenant:
    return Tenant(
        entry.id,
        class_name=file.class_of(entry),
        slo_ms=entry.slo_ms,
        degrade=entry.degrade,
        models=entry.allowed_models,
        rate=None if entry.rate is None else Rate(entry.rate.requests_per_s, entry.rate.tokens_per_s),
        quota=_quota(entry),
    )


def _quota(entry: TenantEntry) -> tuple[tuple[bytes, bytes], ...]:
    bounds = ((QUOTA_COUNT_HEADER, entry.documents.count), (QUOTA_BYTES_HEADER, entry.documents.bytes))
    return tuple((name, str(bound).encode("ascii")) for name, bound in bounds if bound is not None)


def _taken_over(tenant: Tenant, before: Tenant | None, same_rate: bool) -> Tenant:
    if before is None:
        return tenant
    return replace(tenant, paused=before.paused, rate=before.rate if same_rate else tenant.rate)
