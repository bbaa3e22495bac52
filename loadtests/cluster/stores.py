"""Retrieval and its stores in a simulation: the production composition over a fake Valkey and a fake PostgreSQL.

    stores = Stores(simulation)
    stores.fill("demo", {"river.md": ["A weir holds a river at its level."]})
    stores.start_cache()
    node = Node(simulation, "retrieval", "10.0.0.3", partial(stores.retrieval, settings), ...)

Each store has its own loop and can be frozen; the cache can be killed and restarted empty. Parsing takes child
processes, so corpora are put into the database directly; the documents API lists and removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from loadtests.cluster.corpora import Corpus, document
from loadtests.cluster.embedder import FINGERPRINT, WordEmbedder, vector_of
from loadtests.cluster.loop import SimLoop, Simulation
from loadtests.cluster.postgres import FakePostgres
from loadtests.cluster.valkey import FakeValkey
from services.retrieval import app
from services.retrieval.config import RetrievalSettings
from services.runtime.log import Log
from services.runtime.serve import Process

CACHE = ("10.0.2.1", 6379)
DATABASE = "10.0.2.2"
NO_MODEL = Path("no-model")  # the embedder is in this process, and nothing is parsed


class Stores:
    """A cache and a database. `cache_loop` is the cache's process, for `freeze`, `thaw` and `jump`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        rng = Random(f"cache {simulation.rng.random()}")
        self.cache = FakeValkey("0.0.0.0", CACHE[1], rng=rng)
        self.cache_loop: SimLoop | None = None
        self.database = FakePostgres(SimLoop(simulation, "postgres", DATABASE))
        self.embedder = WordEmbedder()

    @property
    def urls(self) -> dict[str, str]:
        """Retrieval's settings for these stores."""
        return {"redis_url": f"redis://{CACHE[0]}:{CACHE[1]}/0", "postgres_url": f"postgresql://weir@{DATABASE}/weir"}

    @property
    def cache_up(self) -> bool:
        """Whether its process runs or is frozen."""
        return self.cache_loop is not None and not self.cache_loop.is_closed()

    def start_cache(self) -> None:
        assert not self.cache_up, "the cache runs already"
        self.cache_loop = SimLoop(self.simulation, "valkey", CACHE[0])
        self.cache_loop.create_task(self.cache.start(), name="valkey")

    def kill_cache(self) -> None:
        """SIGKILL: its keys are lost and its port is closed."""
        assert self.cache_loop is not None, "the cache was never started"
        self.cache.connections.clear()
        self.cache.keys.forget()
        self.cache_loop.kill()

    def fill(self, tenant: str, documents: Mapping[str, Sequence[str]]) -> None:
        """Add documents, each a list of its chunks' texts, to the tenant's corpus as a new version."""
        before = self.database.corpora.get(tenant, Corpus(0))
        version = max(before.version + 1, self.database.clock_ms())
        added = {
            doc_id: document(texts, [vector_of(text) for text in texts], model=FINGERPRINT, version=version)
            for doc_id, texts in documents.items()
        }
        corpus = replace(before, version=version, before=before.version, documents={**before.documents, **added})
        self.database.put(tenant, corpus)

    def retrieval(self, settings: RetrievalSettings, *, rng: Random, log: Log) -> Process:
        connect = self.database.connect
        return app.build(settings, NO_MODEL, embeds=self.embedder, connect=connect, rng=rng, log=log)
