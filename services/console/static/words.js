/** What the short names of the feed mean, in plain words. What is not listed here is shown as it came. */

/** Decisions: their word, their mark, and where they fall. */
export const DECISIONS = {
  admit: { word: "admitted", column: "admit" },
  degrade: { word: "admitted, degraded", column: "degrade" },
  yield: { word: "rejected, retry later", column: "refuse" },
  refuse: { word: "rejected", column: "refuse" },
  served: { word: "answered on time", column: "served" },
  expire: { word: "expired in the queue", column: "expire" },
  late: { word: "too late", column: "lost" },
  gone: { word: "client disconnected", column: "lost" },
  failed: { word: "failed", column: "lost" },
};

const REASONS = {
  deadline: "its deadline cannot be met",
  first_token: "its first token would be late",
  too_long: "longer than its deadline allows",
  standing_queue: "its tenant has a standing queue",
  no_slot: "no slot is free within the requested wait",
  tenant_requests: "its tenant has too many queued requests",
  tenant_cost: "its tenant has too much queued work",
  tenant_bytes: "its tenant’s queue uses too much memory",
  platform_requests: "the router has too many queued requests",
  platform_cost: "the router has too much queued work",
  platform_bytes: "the router’s queue uses too much memory",
  rate: "its tenant is over its rate limit",
  paused: "its tenant is paused",
  early_retry: "it came back before its retry hint",
  no_worker: "no healthy worker",
  no_connection: "the router has no free connection",
  workers_busy: "every worker rejected it",
  draining: "the router is shutting down",
  poison: "it crashed two workers",
};

export const reason = (code) => REASONS[code] ?? code.replaceAll("_", " ");

/** The outcomes by which somebody is turned away before any work, in the order in which charts list them. */
export const REFUSALS = {
  deadline_infeasible: "would be late",
  yield: "no capacity now",
  tenant_queue_full: "tenant’s queue full",
  rate_limit_exceeded: "over its rate limit",
  no_capacity: "no healthy worker",
  draining: "shutting down",
};

/** How what was let in can end without an answer, as a headline. */
export const ENDS = {
  deadline_expired: "Its deadline passed in the queue",
  deadline_exceeded: "Its deadline passed at a worker",
  upstream_failed: "Its workers failed",
  poison_request: "It crashed two workers",
  client_gone: "Its client disconnected",
  model_not_found: "No such model",
  invalid_request: "The request was invalid",
};

/** After admission: the outcomes that are not an answer on time. Who left of their own will is not counted as late. */
export const LATE = ["deadline_expired", "deadline_exceeded", "upstream_failed", "internal_error", "poison_request"];

/** Of these, and those who left, a worker may have worked for nothing. */
export const LOST = ["deadline_exceeded", "upstream_failed", "internal_error", "poison_request", "client_gone"];

export const POLICIES = {
  admission: {
    word: "admission",
    on: "requests that would miss their deadline are rejected at once",
    off: "every request that fits into the queue is admitted",
  },
  fairness: {
    word: "fairness",
    on: "tenants share the capacity, by the cost of their requests",
    off: "one queue for all tenants: first come, first served",
  },
  cancellation: {
    word: "cancellation",
    on: "work stops when its client disconnects or its deadline passes",
    off: "workers finish requests without a client",
  },
};

/** What the ladder leaves of an answer. The shares are those of services/core/ladder.py; a test compares them. */
export const LADDER = [
  { name: "whole", depth: 1, context: 1, answer: 1 },
  { name: "fewer passages", depth: 0.6, context: 0.6, answer: 1 },
  { name: "shorter", depth: 0.4, context: 0.4, answer: 0.7 },
  { name: "short", depth: 0.25, context: 0.25, answer: 0.45 },
  { name: "no passages", depth: 0, context: 0, answer: 0.3 },
];

export function rungSays(level) {
  const rung = LADDER[level];
  if (level === 0) return "Nothing is cut: answers have the length and the passages that were requested.";
  if (rung === undefined) return `Level ${level} is in force.`;
  const share = (value) => `${Math.round(value * 100)} %`;
  const passages =
    rung.depth === 0 ? "no passages" : `${share(rung.depth)} of the passages, ${share(rung.context)} of the context`;
  const length = rung.answer === 1 ? "its full length" : `at most ${share(rung.answer)} of the requested length`;
  const header = "Its header x-weir-degraded says so.";
  return `Level ${level} of ${LADDER.length - 1}: a new answer gets ${passages} and ${length}. ${header}`;
}
