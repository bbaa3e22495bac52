/**
 * The last minute in numbers: one record for each frame, and the rates between them. Counters only ever rise; where one
 * falls, the router is another one and the past is dropped.
 */

import { LATE, LOST, REFUSALS } from "./words.js";

export const SPAN_S = 60;
const MOST = 60 * 12;
const OVER_S = 1; // rates are read over about a second
const SHARES_OVER_S = 10;

const sum = (outcomes, names) => names.reduce((total, name) => total + (outcomes[name] ?? 0), 0);

export class History {
  constructor() {
    this.records = [];
  }

  add(frame) {
    const newest = this.newest;
    const admitted = frame.totals.admitted + frame.totals.degraded;
    if (newest && (frame.seq < newest.seq || admitted < newest.admitted + newest.degraded)) this.records = [];
    this.records.push(recordOf(frame));
    const oldest_s = this.newest.at_s - SPAN_S - 2;
    let stale = this.records.findIndex((record) => record.at_s >= oldest_s);
    stale = Math.max(stale, this.records.length - MOST);
    if (stale > 0) this.records.splice(0, stale);
    this.newest.rates = this.ratesAt(this.records.length - 1);
  }

  get newest() {
    return this.records.at(-1);
  }

  /** Is there a second to read rates over? */
  get ready() {
    return this.newest.at_s - this.records[0].at_s >= OVER_S;
  }

  /** The record about so long before the one at `index`. */
  before(index, over_s) {
    const until_s = this.records[index].at_s - over_s;
    let found = index;
    while (found > 0 && this.records[found].at_s > until_s) found--;
    return this.records[found];
  }

  ratesAt(index) {
    const now = this.records[index];
    const then = this.before(index, OVER_S);
    const took_s = now.at_s - then.at_s;
    const per_s = (name) => (took_s > 0 ? Math.max(0, now[name] - then[name]) / took_s : 0);
    const rates = Object.fromEntries(COUNTED.map((name) => [name, per_s(name)]));
    rates.refusals = Object.fromEntries(
      Object.keys(REFUSALS).map((name) => [
        name,
        took_s > 0 ? Math.max(0, now.outcomes[name] - then.outcomes[name]) / took_s : 0,
      ]),
    );
    return rates;
  }

  /** Over the last ten seconds: the share on time, of what was let in and has ended; of work, what was wasted. */
  shares() {
    if (this.records.length < 2) return { on_time: null, ended: 0, wasted: null };
    const now = this.newest;
    const then = this.before(this.records.length - 1, SHARES_OVER_S);
    const on_time = now.served - then.served;
    const ended = on_time + now.missed - then.missed;
    const worker_s = now.worker_s - then.worker_s;
    return {
      on_time: ended > 0 ? on_time / ended : null,
      ended,
      wasted: worker_s > 0 ? Math.min(1, (now.wasted_s - then.wasted_s) / worker_s) : null,
    };
  }
}

const COUNTED = ["admitted", "degraded", "refused", "served", "expired", "lost", "missed"];

function recordOf(frame) {
  const { totals } = frame;
  const refusals = Object.keys(REFUSALS);
  return {
    seq: frame.seq,
    at_s: frame.at_ms / 1000,
    admitted: totals.admitted,
    degraded: totals.degraded,
    refused: sum(totals.outcomes, refusals),
    served: totals.outcomes.served ?? 0,
    expired: totals.outcomes.deadline_expired ?? 0,
    lost: sum(totals.outcomes, LOST),
    missed: sum(totals.outcomes, LATE),
    worker_s: totals.worker_s,
    wasted_s: totals.wasted_s,
    outcomes: Object.fromEntries(refusals.map((name) => [name, totals.outcomes[name] ?? 0])),
    p50_ms: frame.latency.p50_ms,
    p95_ms: frame.latency.p95_ms,
    deadline_ms: frame.latency.deadline_p50_ms,
    capacity: frame.capacity_tokens_per_s,
    got: frame.got_tokens_per_s,
    waiting: Object.fromEntries(frame.tenants.map((tenant) => [tenant.id, tenant.waiting])),
    rates: null,
  };
}
