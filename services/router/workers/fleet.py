"""All workers, the models that they serve, and the choice of a worker together with a slot at it.

Choosing (decision 023). A worker with a free slot precedes one with only a look-ahead place. Among those the least
loaded wins: work outstanding there by the router's ledger (token-equivalents, as charged), per slot. Among workers
within one request of it, the one that last served the same prompt prefix wins, since its prefix cache may hold it. Ties
go to the longest unused. Above CHOICES candidates two random ones are compared (Mitzenmacher 2001: the longest queue
falls from log n / log log n to log log n), so that several routers do not all choose one worker.

Pools: docs/operations/workers.md#pools. A model gets its pool once, since requests may be queued for it: that of any
model that shares a worker with it, else a new one of its own name.

Bounds: slots and memory as in `worker.py`; MAX_POOLED models have a pool (others are not served, which is logged), and
MAX_PREFIXES prefixes are remembered. A choice is O(1) in workers while any candidate has room.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from math import inf
from random import Random

from services.router.parsing.fields import Servers
from services.router.request import InferenceRequest
from services.router.upstreams.call import Probe
from services.router.workers.expectedends import ExpectedEnds
from services.router.workers.line import CandidateSet
from services.router.workers.worker import AHEAD, DOWN, FREE, MIN_WORK_TOKENS, Availability, Worker
from services.router.workers.workersfile import WorkerSpec

CHOICES = 8
MAX_POOLED = 1024
MAX_PREFIXES = 8192

Connect = Callable[[WorkerSpec], Worker]


def _ignore() -> None:
    """The default until a dispatcher subscribes."""


class Fleet:
    """The workers and the ledger of what they hold. Synchronous: a decision is one step of the event loop."""

    def __init__(self, workers: list[Worker], rng: Random) -> None:
        self.workers = list(workers)
        self.leaving: list[Worker] = []
        """Removed from the list, and still holding requests."""
        self.models: list[str] = []
        """Every model served, in the order of the worker list, live or not; the first is the default."""
        self.pools: list[str] = []
        """Every pool so far, oldest first: requests may be queued for a pool whose workers have left."""
        self.unpooled = 0
        """Models left out since MAX_POOLED models have a pool."""
        self._changed: Callable[[], None] = _ignore
        self._rng = rng
        self._uses = 0
        self._pools: dict[str, str] = {}
        self._open: dict[str, int] = {}
        self._candidates: dict[str, CandidateSet] = {}
        self._candidates_of: dict[Worker, list[CandidateSet]] = {}
        self._lasts: OrderedDict[tuple[str, int], Worker] = OrderedDict()
        self._ends: defaultdict[str, ExpectedEnds] = defaultdict(ExpectedEnds)  # by pool
        self._rebuild()

    def on_change(self, call: Callable[[], None]) -> None:
        """Call `call` after any change of health, slots, models or membership, once the fleet is consistent again."""
        self._changed = call

    # ---- models and pools

    def pool_of(self, model: str) -> str | None:
        """The pool in which requests for this model wait; None if no worker has ever reported the model."""
        return self._pools.get(model)

    def slots(self, pool: str) -> int:
        """Slots of all live workers that serve any model of the pool."""
        return sum(worker.slots for worker in self.workers if pool in worker.pools and worker.live)

    def alive(self, model: str, excluding: Worker | None = None) -> bool:
        """Whether any live worker (except `excluding`) serves the model, busy or not."""
        candidates = self._candidates.get(model)
        if candidates is None:
            return False
        return bool(candidates.live) if excluding is None else len(candidates.live) > (excluding in candidates.live)

    def serving(self, model: str) -> frozenset[Worker]:
        """The live workers that serve the model, busy or not."""
        candidates = self._candidates.get(model)
        return frozenset(candidates.live) if candidates is not None else frozenset()

    def servers(self, model: str) -> Servers:
        """What kinds of workers serve the model, live or not, since pricing precedes the choice."""
        candidates = self._candidates.get(model)
        return Servers() if candidates is None else candidates.servers

    # ---- slots

    def room(self, pool: str) -> bool:
        """Whether any worker of the pool has a slot or a look-ahead place, for whichever of its models."""
        return self._open.get(pool, 0) > 0

    def fits(self, request: InferenceRequest, excluding: Worker | None = None) -> bool:
        """Whether `take` would succeed now."""
        candidates = self._candidates.get(request.model)
        if candidates is None:
            return False
        if excluding is None and not candidates.bounded:
            return bool(candidates.free.workers or candidates.ahead.workers)
        tokens = candidates.needed(_asked_tokens(request), _asked_tokens(request))
        for group in (candidates.free, candidates.ahead):
            for worker in group.workers:
                if _takes(worker, tokens, excluding):
                    return True
        return False

    def take(self, request: InferenceRequest, excluding: Worker | None = None, *, found: bool = False) -> Worker | None:
        """Choose a worker and take a slot at it, in one step; None if there is none.

        `found`: in this step of the loop `room` has found a slot, which is taken as it was then.
        """
        candidates = self._candidates.get(request.model)
        if candidates is None:
            return None
        assert request.open_ended or request.granted_tokens <= request.max_tokens, (
            f"{request!r} was granted {request.granted_tokens}"
        )
        work, tokens = max(request.charge_tokens, MIN_WORK_TOKENS), kv_tokens(request)
        needed = candidates.needed(_asked_tokens(request), tokens) if candidates.bounded else tokens
        worker = self._choose(candidates.free.workers, request, work, needed, excluding)
        if worker is None:
            worker = self._choose(candidates.ahead.workers, request, work, needed, excluding)
        if worker is not None:
            self._uses += 1
            worker.last_used = self._uses
            worker.hold(request, work, tokens)
            if worker.lookahead and not worker.ahead_always:
                if worker.inflight > worker.slots:
                    request.sent_ahead(worker.opened_until)
                self._ends[request.pool].add(request, worker)
            if request.affinity:
                self._remember(request, worker)
            self._counted(worker)
        return worker

    def give_back(
        self,
        worker: Worker,
        request: InferenceRequest,
        *,
        pace: float | None = None,
        overloaded: bool = False,
        served: bool = False,
    ) -> None:
        """Free the request's slot.

        `served`: it was answered. `pace`, of an answer from a worker with a learned limit: see `pace.py`. `overloaded`:
        it was refused for lack of capacity, or not answered.
        """
        resized = worker.release(request, pace, overloaded=overloaded)
        if served and worker.health.failures:
            worker.health.served()
        ends = self._ends.get(request.pool)
        if ends is not None:
            ends.ended(request, worker)
        self._counted(worker)
        if worker.leaving and not worker.inflight:
            self._close(worker)
        elif resized:
            self._changed()

    def look_ahead(self, now: float, pool: str, lead_s: float) -> float:
        """Let a request be sent ahead to a worker of which a slot is expected to be free within `lead_s`.

        Returns `now` if there is such a worker; otherwise when there may be one.
        """
        ends = self._ends.get(pool)
        if ends is None:
            return inf
        due = ends.due(now + lead_s)
        if due is None:
            return ends.next_at() - lead_s
        worker, slot_at = due
        worker.ahead_open, worker.opened_until = True, slot_at
        self._counted(worker)
        return now

    # ---- changes

    def learn(self, worker: Worker, seen: Probe) -> None:
        models = worker.models
        new = worker.learn(seen)
        if worker.models != models and not worker.leaving:
            self._rebuild()
        self._put_right(worker, new)

    def looked(self, worker: Worker) -> None:
        """Update the fleet after a change of the worker's health, draining or rest."""
        self._put_right(worker, new=False)

    def needs(self, worker: Worker) -> bool:
        """Whether without it fewer than half of the workers of one of its models would be live."""
        return any(
            2 * (len(candidates.live) - (worker in candidates.live)) < candidates.members
            for candidates in self._candidates_of.get(worker, ())
        )

    def reload(self, specs: Iterable[WorkerSpec], connect: Connect) -> None:
        """Replace the worker list.

        A worker at the same address, and with the same desk, keeps its requests and all that was learned, under its new
        entry. One that is gone, or has moved, gets nothing new, finishes its requests and is closed.
        """
        before = {worker.name: worker for worker in self.workers}
        workers = []
        for spec in specs:
            old = before.get(spec.name)
            if old is not None and (old.url, old.kind, old.spec.desk) == (spec.url, spec.kind, spec.desk):
                del before[spec.name]
                workers.append(_kept(old, spec, connect))
            else:
                workers.append(connect(spec))
        self.workers = workers
        for worker in before.values():
            self._dismiss(worker)
        self._rebuild()
        self._changed()

    # ---- internals

    def _choose(
        self, candidates: list[Worker], request: InferenceRequest, work: float, tokens: int, excluding: Worker | None
    ) -> Worker | None:
        if not candidates:
            return None
        if len(candidates) > CHOICES:
            best = _lightest(self._two_of(candidates), tokens, excluding) or _lightest(candidates, tokens, excluding)
        else:
            best = _lightest(candidates, tokens, excluding)
        if best is None or not request.affinity:
            return best
        last = self._lasts.get((request.model, request.affinity))
        if last is None or last is best:
            return best
        if last.availability is not best.availability or not _takes(last, tokens, excluding):
            return best
        return last if last.work_tokens - work <= best.work_tokens / best.slots * last.slots else best

    def _two_of(self, candidates: list[Worker]) -> list[Worker]:
        first = int(self._rng.random() * len(candidates))
        second = int(self._rng.random() * (len(candidates) - 1))
        return [candidates[first], candidates[second + (second >= first)]]

    def _remember(self, request: InferenceRequest, worker: Worker) -> None:
        key = (request.model, request.affinity)
        self._lasts[key] = worker
        self._lasts.move_to_end(key)
        if len(self._lasts) > MAX_PREFIXES:
            self._lasts.popitem(last=False)

    def _counted(self, worker: Worker) -> None:
        """The ledger has changed, and nothing else."""
        if worker.availability is FREE and worker.inflight < worker.slots and not worker.resting:
            return  # the common case, without a call
        if worker.availability is not DOWN and (offers := worker.offers()) is not worker.availability:
            self._move(worker, offers)

    def _update_availability(self, worker: Worker) -> bool:
        """Move the worker to its current availability; returns whether that changed."""
        current_availability = worker.current_availability()
        if current_availability is worker.availability:
            return False
        self._move(worker, current_availability)
        return True

    def _move(self, worker: Worker, current_availability: Availability) -> None:
        for candidates in self._candidates_of.get(worker, ()):
            candidates.move(worker, current_availability)
        opens = (current_availability >= AHEAD) - (worker.availability >= AHEAD)
        for pool in worker.pools if opens else ():
            self._open[pool] += opens
            assert self._open[pool] >= 0, f"{self._open[pool]} workers of {pool} have a place: {worker!r} in {self!r}"
        worker.availability = current_availability

    def _put_right(self, worker: Worker, new: bool) -> None:
        if not self._update_availability(worker) and not new:
            return
        for candidates in self._candidates_of.get(worker, ()):
            candidates.measure()
        self._changed()

    def _rebuild(self) -> None:
        """Rebuild models, pools and candidate sets after a change of membership or models."""
        announced = dict.fromkeys(model for worker in self.workers for model in worker.models)
        for worker in self.workers:
            self._give_pools(worker)
        self.models = [model for model in announced if model in self._pools]
        self.unpooled = len(announced) - len(self.models)
        self.pools = list(dict.fromkeys(self._pools.values()))
        self._open = dict.fromkeys(self.pools, 0)
        self._candidates_of = {worker: [] for worker in self.workers}
        for worker in self.workers:
            self._reset_availability(worker)
        self._candidates = self._candidate_sets()

    def _reset_availability(self, worker: Worker) -> None:
        worker.pools = tuple(dict.fromkeys(self._pools[model] for model in worker.models if model in self._pools))
        worker.availability = worker.current_availability()
        for pool in worker.pools if worker.availability >= AHEAD else ():
            self._open[pool] += 1

    def _candidate_sets(self) -> dict[str, CandidateSet]:
        """One candidate set for all models of the same workers: a worker may have hundreds, and moves in each set."""
        serving: dict[str, list[Worker]] = {model: [] for model in self.models}
        for worker in self.workers:
            for model in worker.models:
                if model in serving:
                    serving[model].append(worker)
        sets: dict[tuple[Worker, ...], CandidateSet] = {}
        for workers in map(tuple, serving.values()):
            if workers not in sets:
                sets[workers] = candidates = CandidateSet(workers)
                for worker in workers:
                    self._candidates_of[worker].append(candidates)
        return {model: sets[tuple(workers)] for model, workers in serving.items()}

    def _give_pools(self, worker: Worker) -> None:
        new = [model for model in worker.models if model not in self._pools]
        if not new:
            return
        known = [self._pools[model] for model in worker.models if model in self._pools]
        for model in new[: MAX_POOLED - len(self._pools)]:
            self._pools[model] = known[0] if known else new[0]

    def _dismiss(self, worker: Worker) -> None:
        worker.leaving = True
        worker.availability = DOWN
        for key in [key for key, last in self._lasts.items() if last is worker]:
            del self._lasts[key]
        self.leaving.append(worker)
        if not worker.inflight:
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        self.leaving.remove(worker)
        worker.upstream.close()

    def __repr__(self) -> str:
        live = sum(worker.live for worker in self.workers)
        return f"<Fleet {live}/{len(self.workers)} live, {len(self.leaving)} leaving, pools {self.pools}>"


def kv_tokens(request: InferenceRequest) -> int:
    """The memory that the request is likely to need: its prompt and its longest answer, as granted if that is known."""
    return request.prompt_tokens + request.context_tokens + (request.planned_tokens or request.max_tokens)


def _asked_tokens(request: InferenceRequest) -> int:
    """The same without a grant, which is never less: what fits by this number can be taken."""
    return request.prompt_tokens + request.context_tokens + request.max_tokens


def _takes(worker: Worker, tokens: int, excluding: Worker | None) -> bool:
    """Whether a worker with a free slot can take so many tokens, and is not excluded."""
    return worker is not excluding and worker.has_room(tokens)


def _lightest(candidates: list[Worker], tokens: int, excluding: Worker | None) -> Worker | None:
    """The least loaded, the longest unused on a tie. `_takes` is inlined: this is the router's innermost loop."""
    best: Worker | None = None
    best_load = 0.0
    for worker in candidates:
        memory = worker.kv_tokens
        if worker is excluding or (memory is not None and worker.kv_held_tokens + tokens > memory):
            continue
        load = worker.work_tokens / worker.slots
        if best is None or load < best_load or (load == best_load and worker.last_used < best.last_used):
            best, best_load = worker, load
    return best


def _kept(worker: Worker, spec: WorkerSpec, connect: Connect) -> Worker:
    """The same worker under a new entry. Its connections are replaced only if the entry changed."""
    if spec != worker.spec:
        before = worker.upstream
        worker.adopt(spec, connect(spec).upstream)
        before.close()
    return worker
