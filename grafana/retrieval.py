"""Retrieval: does it keep its budget, and which fallback is used when it cannot?

The router's view (`job="router"`) is what requests felt; the service's own (`job="retrieval"`) says where time went.
"""

from __future__ import annotations

from grafana.overview import FRONT
from grafana.panels import DOWN_OR_UP, GREEN, RED, YELLOW, Dashboard, Panel, Query, Row
from grafana.promql import mean, quantile, quantiles, rate, share

SERVICE = 'job="retrieval"'
POSTGRES = 'job="postgres"'
VALKEY = 'job="valkey"'
DATABASE = f'{POSTGRES}, datname!~"|template.*|postgres"'
READ = rate("pg_stat_database_blks_hit", DATABASE)
READ_FROM_DISK = rate("pg_stat_database_blks_read", DATABASE)
FOUND = rate("weir_retrieval_seconds_count", f'{FRONT}, source=~"db|cache|semantic"')
ASKED = rate("weir_retrieval_seconds_count", f'{FRONT}, source!="skipped"')
HITS = rate("weir_cache_total", f'{SERVICE}, cache="exact", result="hit"')
LOOK_UPS = rate("weir_cache_total", f'{SERVICE}, cache="exact", result=~"hit|stale|miss|invalid|error"')

NOW = Row(
    "Now",
    (
        Panel(
            "How many questions need passages?",
            "Retrievals per second, as the router counts them.",
            "reqps",
            (Query(ASKED, "retrievals"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "What share gets fresh passages?",
            "Found in the database, or kept in the cache and still fresh. The rest is answered with old passages or "
            "with none, and says so.",
            "percentunit",
            (Query(share(FOUND, ASKED), "fresh"),),
            kind="stat",
            width=4,
            most=1,
            thresholds=((0, RED), (0.8, YELLOW), (0.99, GREEN)),
        ),
        Panel(
            "How long does a question wait for them?",
            "95 of 100 retrievals took at most this long, as the router saw them. RETRIEVAL_BUDGET_MS bounds them.",
            "s",
            (Query(quantile(0.95, "weir_retrieval_seconds", FRONT), "p95"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How often does the cache hit?",
            "Share of look-ups of the exact cache that found a fresh entry.",
            "percentunit",
            (Query(share(HITS, LOOK_UPS), "hits"),),
            kind="stat",
            width=4,
            most=1,
        ),
        Panel(
            "How many texts wait to be embedded?",
            "The embedder's queue. EMBED_QUEUE_SIZE bounds it; texts beyond it are not embedded.",
            "short",
            (Query(f"max (weir_embed_queue_depth{{{SERVICE}}})", "texts"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How many connections run a query?",
            "Of the connections to PostgreSQL, those in use. At POSTGRES_POOL_SIZE further searches wait, within "
            "their budget.",
            "short",
            (Query(f"sum (weir_postgres_connections_in_use{{{SERVICE}}})", "in use"),),
            kind="stat",
            width=4,
        ),
    ),
)

BUDGET = Row(
    "Does it keep its budget?",
    (
        Panel(
            "Where do passages come from?",
            "Retrievals per second by source, as the router saw them. stale: an expired entry was used; none: "
            "retrieval was late or down.",
            "reqps",
            (Query(rate("weir_retrieval_seconds_count", FRONT, "source"), "{{source}}"),),
            stacked=True,
        ),
        Panel(
            "How long does each source take?",
            "95 of 100 retrievals took at most this long, by source, as the router saw them. None may pass "
            "RETRIEVAL_BUDGET_MS.",
            "s",
            (Query(quantile(0.95, "weir_retrieval_seconds", FRONT, "source"), "{{source}}"),),
        ),
        Panel(
            "Why was there no fresh result?",
            "Retrievals without a fresh result per second, by reason: budget spent, the database down or busy, the "
            "embedder full.",
            "reqps",
            (Query(rate("weir_retrieval_shortfalls_total", SERVICE, "reason"), "{{reason}}"),),
            stacked=True,
        ),
    ),
)

TIME = Row(
    "Where does the time go?",
    (
        Panel(
            "How long does a search take?",
            "Database searches that answered. It grows with the tenant's chunks; near the budget, its corpus has "
            "outgrown exact search.",
            "s",
            quantiles("weir_retrieval_search_seconds", SERVICE),
        ),
        Panel(
            "How long does embedding take?",
            "One pass of the embedder, for any number of texts.",
            "s",
            quantiles("weir_embed_seconds", SERVICE),
        ),
        Panel(
            "How many texts share a pass?",
            "Mean number of texts in a pass of the embedder, and how many wait for one. Both near 1 and 0 at rest.",
            "short",
            (
                Query(mean("weir_embed_batch_size", SERVICE), "in a pass"),
                Query(f"max (weir_embed_queue_depth{{{SERVICE}}})", "waiting"),
            ),
        ),
    ),
)

CACHE = Row(
    "What does the cache do?",
    (
        Panel(
            "What do cache look-ups find?",
            "Look-ups of the exact cache per second. stale: found, but too old, and kept as a fallback; error: Redis "
            "was slow or down; skipped: it was so shortly before.",
            "reqps",
            (
                Query(
                    rate("weir_cache_total", f'{SERVICE}, cache="exact", result!~"stored|not_stored"', "result"),
                    "{{result}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Does a fallback help when a search gives no fresh result?",
            "Searches per second without a fresh result that found an expired entry (hit) or nothing (miss).",
            "reqps",
            (Query(rate("weir_cache_total", f'{SERVICE}, cache="stale"', "result"), "{{result}}"),),
            stacked=True,
        ),
        Panel(
            "What is kept?",
            "Results written to the cache per second, and those that could not be. Empty and failed results are not "
            "kept.",
            "reqps",
            (
                Query(
                    rate("weir_cache_total", f'{SERVICE}, cache="exact", result=~"stored|not_stored"', "result"),
                    "{{result}}",
                ),
            ),
        ),
    ),
)

STORES = Row(
    "Are the stores well?",
    (
        Panel(
            "Do they answer?",
            "PostgreSQL and Redis, as retrieval finds them. Without PostgreSQL there are cached passages or none; "
            "without Redis every question needs a search.",
            "none",
            (Query(f"min by (dependency) (weir_dependency_up{{{SERVICE}}})", "{{dependency}}"),),
            kind="state-timeline",
            values=DOWN_OR_UP,
        ),
        Panel(
            "How many connections are there?",
            "Connections to PostgreSQL: open, and running a query. All in use for long: searches wait for one.",
            "short",
            (
                Query(f"sum (weir_postgres_connections_in_use{{{SERVICE}}})", "in use"),
                Query(f"sum (weir_postgres_connections{{{SERVICE}}})", "open", bound=True),
            ),
        ),
        Panel(
            "How many questions share a search?",
            "Retrievals per second that joined the run of an identical one instead of searching again.",
            "reqps",
            (Query(rate("weir_retrieval_coalesced_total", SERVICE), "joined"),),
        ),
    ),
)

EXPORTED = Row(
    "What do the stores report themselves? (in containers)",
    (
        Panel(
            "Do their exporters reach them?",
            "PostgreSQL and Valkey, as their exporters find them. The row above has retrieval's own view.",
            "none",
            (
                Query(f"min (pg_up{{{POSTGRES}}})", "postgres"),
                Query(f"min (redis_up{{{VALKEY}}})", "valkey"),
            ),
            kind="state-timeline",
            values=DOWN_OR_UP,
        ),
        Panel(
            "How many transactions does PostgreSQL run?",
            "Transactions per second of the database, committed and rolled back. A search is a transaction.",
            "short",
            (
                Query(rate("pg_stat_database_xact_commit", DATABASE), "committed"),
                Query(rate("pg_stat_database_xact_rollback", DATABASE), "rolled back"),
            ),
        ),
        Panel(
            "What share of its reads needs no disk?",
            "Blocks that PostgreSQL found in its shared buffers, of all that it read. Searches are slow where the "
            "index does not fit into them.",
            "percentunit",
            (Query(share(READ, f"{READ} + {READ_FROM_DISK}"), "from memory"),),
            most=1,
        ),
        Panel(
            "How large is the database?",
            "Bytes on the disk, indexes included. Chunks, their vectors and the graph of large tenants.",
            "bytes",
            (Query(f"sum (pg_database_size_bytes{{{DATABASE}}})", "on disk"),),
        ),
        Panel(
            "How full is Valkey?",
            "Memory that it uses, and the most that it may. At the most it evicts what was used least recently.",
            "bytes",
            (
                Query(f"sum (redis_memory_used_bytes{{{VALKEY}}})", "used"),
                Query(f"sum (redis_memory_max_bytes{{{VALKEY}}})", "allowed", bound=True),
            ),
        ),
        Panel(
            "How does Valkey answer?",
            "Look-ups per second that found a key or none, and keys that were evicted for lack of memory.",
            "short",
            (
                Query(rate("redis_keyspace_hits_total", VALKEY), "found"),
                Query(rate("redis_keyspace_misses_total", VALKEY), "not found"),
                Query(rate("redis_evicted_keys_total", VALKEY), "evicted"),
            ),
        ),
    ),
)

RETRIEVAL = Dashboard(
    "weir-retrieval",
    "Weir: retrieval",
    "Does retrieval keep its budget, and which fallback is used when it cannot?",
    (NOW, BUDGET, TIME, CACHE, STORES, EXPORTED),
)
