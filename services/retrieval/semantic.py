"""The semantic cache: the results of the nearest earlier question, if its cosine reaches the threshold.

docs/decisions/032-the-semantic-cache-and-its-threshold.md holds the threshold (0 turns the cache off), the bounds and
the evictions. Vectors have unit length, so one product of a matrix and a vector gives the cosines of all questions. A
tenant's matrix is of one corpus version, and a newer version replaces it. Only questions with equal parameters are
compared, and tenant, version and parameters are checked again before a result is used. Effort and depth are not among
them (`search_params.py`): a result that covers the request's is preferred, another may be a fallback.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.contracts.search import Passage
from services.retrieval.cache import CachedResult
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.search_params import SearchParams

TENANT_SHARE = 0.25  # of all bytes: the maximum of one tenant
LARGEST_SHARE = 0.25  # of a tenant's bytes: the maximum of one entry
ROW_BYTES = DIMENSIONS * 4
ENTRY_BYTES = 1_024  # overhead of an entry's Python objects
FIRST_ROWS = 16
EMPTY = -1  # no string has this hash
UNLIKE = -2.0  # below any cosine


@dataclass(frozen=True, slots=True)
class _Entry:
    """An answered question: fresh until `fresh_until`, a fallback until `kept_until`."""

    tenant: str
    version: int
    variant: str
    query: str
    results: list[Passage]
    params: SearchParams
    kept_at: float
    fresh_until: float
    kept_until: float
    bytes: int


class _TenantIndex:
    """One tenant's questions of one corpus version: row `i` of the matrix is the vector of `entries[i]`."""

    def __init__(self, version: int, max_entries: int) -> None:
        self.version = version
        self.entry_bytes = 0
        self._max_entries = max_entries
        self._vectors: Floats = np.zeros((min(FIRST_ROWS, max_entries), DIMENSIONS), np.float32)
        self._variants = np.full(len(self._vectors), EMPTY, np.int64)  # hash of a row's variant
        self._params = np.zeros((len(self._vectors), 2), np.float64)  # a row's effort and depth
        self._entries: dict[int, _Entry] = {}
        self._rows: OrderedDict[tuple[str, str], int] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self.entry_bytes + len(self._vectors) * ROW_BYTES

    def nearest(self, variant: str, vector: Floats, params: SearchParams, threshold: float) -> _Entry | None:
        """The entry of this variant with the greatest cosine from `threshold` on; one that covers `params` is
        preferred.
        """
        cosines = np.where(self._variants == hash(variant), self._vectors @ vector, UNLIKE)
        row = int(np.argmax(cosines))
        if cosines[row] < threshold:
            return None
        nearest = self._entries[row]
        if nearest.params.covers(params):
            return nearest
        covering = np.where((self._params >= params).all(axis=1), cosines, UNLIKE)
        row = int(np.argmax(covering))
        return self._entries[row] if covering[row] >= threshold else nearest

    def held(self, entry: _Entry) -> _Entry | None:
        row = self._rows.get((entry.variant, entry.query))
        return None if row is None else self._entries[row]

    def use(self, entry: _Entry) -> None:
        self._rows.move_to_end((entry.variant, entry.query))

    def put(self, entry: _Entry, vector: Floats) -> None:
        """Replace the entry of the same question, else use a free row, else replace the least recently used entry."""
        self.drop(entry)
        if len(self) == self._max_entries:
            self.drop_oldest()
        row = self._free_row()
        self._vectors[row] = vector
        self._variants[row] = hash(entry.variant)
        self._params[row] = entry.params
        self._entries[row] = entry
        self._rows[entry.variant, entry.query] = row
        self.entry_bytes += entry.bytes

    def drop_oldest(self) -> None:
        self.drop(self._entries[next(iter(self._rows.values()))])

    def drop(self, entry: _Entry) -> None:
        row = self._rows.pop((entry.variant, entry.query), None)
        if row is not None:
            self.entry_bytes -= self._entries.pop(row).bytes
            self._variants[row] = EMPTY

    def _free_row(self) -> int:
        free = np.flatnonzero(self._variants == EMPTY)
        if len(free):
            return int(free[0])
        rows = len(self._vectors)
        more = min(rows, self._max_entries - rows)
        self._vectors = np.vstack([self._vectors, np.zeros((more, DIMENSIONS), np.float32)])
        self._variants = np.append(self._variants, np.full(more, EMPTY))
        self._params = np.vstack([self._params, np.zeros((more, 2))])
        return rows


class Semantic:
    """Results by similarity of the question. Synchronous: it never leaves the process."""

    def __init__(
        self,
        *,
        threshold: float,
        stale_s: float,
        tenant_entries: int,
        max_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._threshold = threshold
        self._stale_s = stale_s
        self._tenant_entries = tenant_entries
        self._max_bytes = max_bytes
        self._tenant_bytes = int(max_bytes * TENANT_SHARE)
        self._clock = clock
        self._indexes: OrderedDict[str, _TenantIndex] = OrderedDict()  # least recently used first
        self._bytes = 0

    @property
    def on(self) -> bool:
        return self._threshold > 0

    @property
    def entries(self) -> int:
        return sum(len(index) for index in self._indexes.values())

    @property
    def bytes(self) -> int:
        """Bytes in use: vectors, free rows included, and results."""
        return self._bytes

    def nearest(
        self, tenant: str, *, version: int | None, variant: str, vector: Floats, params: SearchParams
    ) -> CachedResult | None:
        """The results of the nearest question; not fresh once its TTL is over or where it does not cover `params`."""
        index = self._indexes.get(tenant)
        unit = _unit(vector)
        if not self.on or index is None or unit is None or index.version != version:
            return None
        entry = index.nearest(variant, unit, params, self._threshold)
        now = self._clock()
        if entry is None or now >= entry.kept_until:
            return None
        if (entry.tenant, entry.version, entry.variant) != (tenant, version, variant):
            return None
        index.use(entry)
        self._indexes.move_to_end(tenant)
        fresh = now < entry.fresh_until and entry.params.covers(params)
        return CachedResult(entry.results, entry.params, now - entry.kept_at, fresh)

    def keep(
        self,
        tenant: str,
        *,
        version: int,
        variant: str,
        query: str,
        vector: Floats,
        results: list[Passage],
        params: SearchParams,
        ttl_s: float,
    ) -> bool:
        """Store a complete result; False if it was not stored.

        A result of an older corpus version than the newest seen is not stored, nor one found with less effort than a
        fresh entry.
        """
        unit = _unit(vector)
        if not self.on or unit is None or not results or ttl_s <= 0:
            return False
        now, held_bytes = self._clock(), ENTRY_BYTES + _bytes_of(query, variant, results)
        until = (now + ttl_s, now + ttl_s + self._stale_s)
        entry = _Entry(tenant, version, variant, query, results, params, now, *until, held_bytes)
        index = self._indexes.get(tenant)
        if held_bytes > self._tenant_bytes * LARGEST_SHARE or (index is not None and index.version > version):
            return False
        if index is not None and index.version == version and self._has_more_effort(index.held(entry), entry):
            return False
        self._bytes -= 0 if index is None else index.bytes
        if index is None or index.version < version:
            index = self._indexes[tenant] = _TenantIndex(version, self._tenant_entries)
        index.put(entry, unit)
        while index.bytes > self._tenant_bytes and len(index):
            index.drop_oldest()
        self._bytes += index.bytes
        self._indexes.move_to_end(tenant)
        while self._bytes > self._max_bytes:
            self._bytes -= self._indexes.popitem(last=False)[1].bytes
        return True

    def _has_more_effort(self, held: _Entry | None, than: _Entry) -> bool:
        return held is not None and held.fresh_until > self._clock() and held.params.effort > than.params.effort


def _unit(vector: Floats) -> Floats | None:
    """The vector at length one; None if it has no direction."""
    flat: np.ndarray[Any, np.dtype[np.float32]] = np.asarray(vector, np.float32).reshape(-1)
    length = float(np.linalg.norm(flat))
    if flat.shape != (DIMENSIONS,) or not np.isfinite(length) or length == 0.0:
        return None
    return flat / np.float32(length)


def _bytes_of(query: str, variant: str, results: list[Passage]) -> int:
    """An upper bound: four bytes for each character."""
    characters = sum(len(each.text) + len(each.chunk_id) + len(each.doc_id) + 64 for each in results)
    return 4 * (len(query) + len(variant) + characters)
