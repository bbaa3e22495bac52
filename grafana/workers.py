"""Workers and batching: are the slots used, how do sequences share steps, and whom does the router trust?

A worker tells of itself under `job="worker"`; what the router holds at it stands under `job="router"`. An
OpenAI-compatible server has only the second side.
"""

from __future__ import annotations

from grafana.overview import FRONT
from grafana.panels import DOWN_OR_UP, GREEN, RED, YELLOW, Choice, Dashboard, Panel, Query, Row
from grafana.promql import mean, quantile, rate, share

WORKER = 'job="worker", instance=~"$instance"'
INSTANCE = Choice("instance", "Worker", 'label_values(weir_worker_slots{job="worker"}, instance)')
MADE = rate("weir_worker_completion_tokens_total", WORKER)
WASTED_TOKENS = rate("weir_worker_wasted_tokens_total", WORKER)

NOW = Row(
    "Now",
    (
        Panel(
            "How many workers are healthy?",
            "Workers that answered the last probe of every router and are not ejected. With none, every request is "
            "refused with no_capacity.",
            "short",
            (Query(f"sum (min by (worker) (weir_worker_healthy{{{FRONT}}}))", "healthy"),),
            kind="stat",
            width=4,
            thresholds=((0, RED), (1, YELLOW), (2, GREEN)),
        ),
        Panel(
            "What share of the slots is used?",
            "Sequences running, of those that may run at once, as the workers count them.",
            "percentunit",
            (
                Query(
                    share(f"sum (weir_worker_inflight{{{WORKER}}})", f"sum (weir_worker_slots{{{WORKER}}})"), "in use"
                ),
            ),
            kind="stat",
            width=4,
            most=1,
        ),
        Panel(
            "How many tokens are made?",
            "Tokens of answers per second, all workers together.",
            "short",
            (Query(MADE, "tokens/s"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How large is a batch?",
            "Mean number of sequences that shared a step. Near the number of slots under load, near 1 at rest.",
            "short",
            (Query(mean("weir_worker_batch_size", WORKER), "sequences"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "How long is a step?",
            "Mean time of an engine step. A step yields one token for each running sequence, so this is the time "
            "between two tokens of an answer.",
            "s",
            (Query(mean("weir_worker_step_seconds", WORKER), "step"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "What share of the tokens is wasted?",
            "Tokens generated for answers that reached no client, of all generated tokens.",
            "percentunit",
            (Query(f"clamp_max({share(WASTED_TOKENS, MADE)}, 1)", "wasted"),),
            kind="stat",
            width=4,
            most=1,
            thresholds=((0, GREEN), (0.05, YELLOW), (0.1, RED)),
        ),
    ),
)

SLOTS = Row(
    "Are the slots used?",
    (
        Panel(
            "How many slots are in use?",
            "Sequences running in each worker, against the slots that it has. Below the slots while requests wait in "
            "the router: something else is the bound, MAX_INFLIGHT or the token memory.",
            "short",
            (
                Query(f"weir_worker_inflight{{{WORKER}}}", "{{instance}}"),
                Query(f"weir_worker_slots{{{WORKER}}}", "{{instance}} slots", bound=True),
            ),
        ),
        Panel(
            "How much does the router hold at each?",
            "Places in the router's ledger. It should agree with what the worker runs: more here means that the "
            "worker has lost some, more there that another client uses it.",
            "short",
            (
                Query(f"weir_worker_inflight{{{FRONT}}}", "{{worker}}"),
                Query(f"weir_worker_slots{{{FRONT}}}", "{{worker}} slots", bound=True),
            ),
        ),
        Panel(
            "How much work is outstanding at each?",
            "Token-equivalents by which the router chooses: the next request goes to the worker with the least. "
            "Curves far apart mean that one is slower.",
            "short",
            (Query(f"weir_worker_work_tokens{{{FRONT}}}", "{{worker}}"),),
        ),
        Panel(
            "How many wait for a slot at a worker?",
            "Requests in each worker's own bounded queue. The router sends no more than the slots hold, so this is "
            "near 0 unless another client uses the worker.",
            "short",
            (Query(f"weir_worker_queue_depth{{{WORKER}}}", "{{instance}}"),),
        ),
        Panel(
            "How long do they wait there?",
            "95 of 100 requests got their slot within this time after they reached the worker.",
            "s",
            (Query(quantile(0.95, "weir_worker_queue_delay_seconds", WORKER, "instance"), "{{instance}}"),),
        ),
        Panel(
            "How full is the token memory?",
            "Share of the memory for prompts and answers that is in use. At 100 % no slot can be filled, however many "
            "are free.",
            "percentunit",
            (Query(f"weir_worker_kv_usage_ratio{{{WORKER}}}", "{{instance}}"),),
            most=1,
        ),
    ),
)

BATCHES = Row(
    "How well do sequences share steps?",
    (
        Panel(
            "How large are batches?",
            "Mean number of sequences that shared a step. Continuous batching fills it as soon as a slot is free.",
            "short",
            (Query(mean("weir_worker_batch_size", WORKER, "instance"), "{{instance}}"),),
        ),
        Panel(
            "How long does a step take?",
            "Median and the 95th of 100 engine steps. It should rise a little with the batch; where it doubles with "
            "it, batching buys nothing.",
            "s",
            (
                Query(quantile(0.5, "weir_worker_step_seconds", WORKER, "instance"), "{{instance}} p50"),
                Query(quantile(0.95, "weir_worker_step_seconds", WORKER, "instance"), "{{instance}} p95"),
            ),
        ),
        Panel(
            "How many tokens are made and read?",
            "Tokens of answers that were made, and of prompts that were read, per second. Prefill takes time from "
            "decoding: many new prompts slow the running answers.",
            "short",
            (Query(MADE, "made"), Query(rate("weir_worker_prefill_tokens_total", WORKER), "read")),
        ),
    ),
)

WASTE = Row(
    "Is work wasted?",
    (
        Panel(
            "Why is slot time wasted?",
            "Slots busy with answers that reached no client, by reason: 1 is one slot, all the time. client_gone: the "
            "client left; deadline_exceeded: it was admitted too late; lost: the worker died with it.",
            "short",
            (Query(rate("weir_wasted_seconds_total", WORKER, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "How many tokens are wasted?",
            "Tokens made for such answers, per second. They lie below the slot time where cancels arrive early.",
            "short",
            (Query(rate("weir_worker_wasted_tokens_total", WORKER, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "How do requests end at workers?",
            "Requests per second by outcome, as the workers count them: a retried request counts twice here, and one"
            " rejected by the router not at all.",
            "reqps",
            (Query(rate("weir_worker_requests_total", WORKER, "outcome") + " > 0", "{{outcome}}"),),
            stacked=True,
        ),
    ),
)

TRUST = Row(
    "Are they healthy for the router?",
    (
        Panel(
            "Which workers are up?",
            "Up while a worker answers the router's probes and is not ejected. Five failures in a row eject it.",
            "none",
            (Query(f"min by (worker) (weir_worker_healthy{{{FRONT}}})", "{{worker}}"),),
            kind="state-timeline",
            values=DOWN_OR_UP,
        ),
        Panel(
            "How many need a second attempt, and why?",
            "Requests per second sent to a second worker: the first refused, failed before its first output, or was "
            "not reached.",
            "reqps",
            (Query(rate("weir_retries_total", FRONT, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "How often is an engine replaced?",
            "Engines that ended or stalled, in the last ten minutes, by worker. Anything above 0 has a line in the "
            "worker's log, and an alert.",
            "short",
            (Query(f"increase(weir_worker_engine_restarts_total{{{WORKER}}}[10m])", "{{instance}}"),),
        ),
        Panel(
            "How much processor time do workers take?",
            "Cores used by each worker's own process; an engine with a model computes in another one.",
            "short",
            (Query(rate("process_cpu_seconds_total", WORKER, "instance"), "{{instance}}"),),
            width=12,
        ),
        Panel(
            "How much memory do workers hold?",
            "Resident memory of each worker's own process. It should be flat under steady load.",
            "bytes",
            (Query(f"process_resident_memory_bytes{{{WORKER}}}", "{{instance}}"),),
            width=12,
        ),
    ),
)

WORKERS = Dashboard(
    "weir-workers",
    "Weir: workers and batching",
    "Are the slots used, do sequences share steps, and does the work reach clients?",
    (NOW, SLOTS, BATCHES, WASTE, TRUST),
    (INSTANCE,),
)
