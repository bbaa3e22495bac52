/** What the short names of the feed mean, in plain words. What is not listed here is shown as it came. */

/** Decisions: their word, their mark, and where they fall. */
export const DECISIONS = {
  admit: { word: "let in", column: "admit" },
  degrade: { word: "let in, made smaller", column: "degrade" },
  yield: { word: "turned away, come back", column: "refuse" },
  refuse: { word: "turned away", column: "refuse" },
  served: { word: "answered on time", column: "served" },
  expire: { word: "expired in line", column: "expire" },
  late: { word: "too late", column: "lost" },
  gone: { word: "client gone", column: "lost" },
  failed: { word: "failed", column: "lost" },
};

const REASONS = {
  deadline: "would not be ready by its deadline",
  first_token: "its first token would be late",
  too_long: "longer than its deadline allows",
  standing_queue: "its tenant’s line has stood too long",
  no_slot: "wanted a slot now, none is free",
  tenant_requests: "its tenant has too many requests waiting",
  tenant_cost: "its tenant has too much work waiting",
  tenant_bytes: "its tenant has too many bytes waiting",
  platform_requests: "too many requests wait in all",
  platform_cost: "too much work waits in all",
  platform_bytes: "too many bytes wait in all",
  rate: "its tenant is over its rate",
  paused: "its tenant is paused",
  no_worker: "no worker is alive",
  no_connection: "the router has no connection left",
  workers_busy: "every worker refused it",
  draining: "the router is shutting down",
  poison: "it stopped two workers",
};

export const reason = (code) => REASONS[code] ?? code.replaceAll("_", " ");

/** The outcomes by which somebody is turned away before any work, in the order in which charts list them. */
export const REFUSALS = {
  deadline_infeasible: "would be late",
  yield: "no room now",
  tenant_queue_full: "own line full",
  rate_limit_exceeded: "over its rate",
  no_capacity: "no worker",
  draining: "shutting down",
};

/** How what was let in can end without an answer, as a headline. */
export const ENDS = {
  deadline_expired: "Its deadline passed in line",
  deadline_exceeded: "Its deadline passed at a worker",
  upstream_failed: "Its workers failed",
  poison_request: "It stopped two workers",
  client_gone: "Its client left",
  model_not_found: "No such model",
  invalid_request: "The request was wrong",
};

/** After admission: the outcomes that are not an answer on time. Who left of their own will is not counted as late. */
export const LATE = ["deadline_expired", "deadline_exceeded", "upstream_failed", "internal_error", "poison_request"];

/** Of these, and those who left, a worker may have worked for nothing. */
export const LOST = ["deadline_exceeded", "upstream_failed", "internal_error", "poison_request", "client_gone"];

export const POLICIES = {
  admission: {
    word: "admission",
    on: "the door refuses at once what would be late",
    off: "whoever finds room is let in, and waits",
  },
  fairness: {
    word: "fairness",
    on: "tenants take turns, by the work they cause",
    off: "one line for all: first come, first served",
  },
  cancellation: {
    word: "cancellation",
    on: "work stops for those who left or are late",
    off: "workers finish what nobody waits for",
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
  if (level === 0) return "Nothing is cut: answers are as long, and with as many passages, as was asked.";
  if (rung === undefined) return `Level ${level} is in force.`;
  const share = (value) => `${Math.round(value * 100)} %`;
  const passages =
    rung.depth === 0 ? "no passages" : `${share(rung.depth)} of the passages, ${share(rung.context)} of the context`;
  const length = rung.answer === 1 ? "its whole length" : `at most ${share(rung.answer)} of the length asked for`;
  const told = "Its header x-weir-degraded says so.";
  return `Level ${level} of ${LADDER.length - 1}: a new answer gets ${passages} and ${length}. ${told}`;
}
