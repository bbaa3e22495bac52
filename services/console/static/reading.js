/**
 * The picture in one or two sentences, and its four numbers. The sentence changes every two seconds at most, so that it
 * can be read; what of it is news is also told to the announcer.
 */

import { $, setText } from "./dom.js";
import { count, list, percent, plural, rate } from "./format.js";
import { POLICIES, REFUSALS } from "./words.js";

const EVERY_MS = 2000;
const GOOD = 0.95;
const QUIET_PER_S = 0.05;

export class Reading {
  constructor(announcer) {
    this.announcer = announcer;
    this.shown_ms = -EVERY_MS;
    this.last = { level: 0, late: false, down: 0 };
  }

  update(frame, history, now_ms) {
    const shares = history.shares();
    this.#numbers(frame, history.newest, shares);
    if (now_ms - this.shown_ms < EVERY_MS || !history.ready) return;
    this.shown_ms = now_ms;
    setText($("reading"), sentence(frame, history.newest.rates, shares));
    this.#news(frame, shares);
  }

  #numbers(frame, newest, shares) {
    const { rates } = newest;
    setText($("on-time"), percent(shares.on_time));
    setText(
      $("on-time-of"),
      shares.ended > 0
        ? `of the ${count(shares.ended)} that ended in the last 10 s`
        : "of those that ended in the last 10 s",
    );
    setText($("goodput"), count(frame.got_tokens_per_s));
    setText($("goodput-of"), capacityOf(frame));
    setText($("turned-away"), rate(rates.refused));
    setText($("turned-away-of"), awayOf(rates));
    setText($("wasted"), percent(shares.wasted));
  }

  /** Levels, lateness and workers: what somebody who does not see the page would want to be told. */
  #news(frame, shares) {
    const down = frame.workers.filter((worker) => !worker.healthy).length;
    const late = shares.on_time !== null && shares.ended >= 10 && shares.on_time < GOOD;
    if (frame.level !== this.last.level) this.announcer.say(`Degradation level ${frame.level}.`);
    if (late !== this.last.late)
      this.announcer.say(
        late
          ? `Only ${percent(shares.on_time)} % of the admitted requests are on time.`
          : "Admitted requests are on time again.",
      );
    if (down !== this.last.down)
      this.announcer.say(
        down === 0 ? "All workers respond." : `${plural(down, "worker")} ${down === 1 ? "does" : "do"} not respond.`,
      );
    this.last = { level: frame.level, late, down };
  }
}

function capacityOf(frame) {
  const capacity = frame.capacity_tokens_per_s;
  if (!capacity) return "capacity is not known yet";
  return `${percent(frame.got_tokens_per_s / capacity)} % of capacity (${count(capacity)})`;
}

function awayOf(rates) {
  const arrive = rates.admitted + rates.degraded + rates.refused;
  if (arrive < QUIET_PER_S) return "no requests";
  const most = Object.entries(rates.refusals).sort((a, b) => b[1] - a[1])[0];
  const why = most[1] > 0 ? `, most: ${REFUSALS[most[0]]}` : "";
  return `${percent(rates.refused / arrive)} % of what arrives${why}`;
}

export function sentence(frame, rates, shares) {
  return [offSentence(frame.policy), flowSentence(frame, rates), timeSentence(frame, rates, shares)]
    .filter(Boolean)
    .join(" ");
}

function offSentence(policy) {
  const off = Object.keys(POLICIES)
    .filter((name) => policy[name] === false)
    .map((name) => POLICIES[name].word);
  if (off.length === 0) return "";
  const words = list(off);
  return `${words[0].toUpperCase()}${words.slice(1)} ${off.length > 1 ? "are" : "is"} off.`;
}

function flowSentence(frame, rates) {
  const let_in = rates.admitted + rates.degraded;
  const arrive = let_in + rates.refused;
  if (frame.draining) return "The router is shutting down: it finishes what runs.";
  if (frame.workers.every((worker) => !worker.healthy))
    return "No worker responds: every request is rejected with a time to retry.";
  if (arrive < QUIET_PER_S)
    return frame.inflight.now > 0
      ? "No new requests arrive; the admitted ones are being answered."
      : "No requests arrive at the moment.";
  const smaller = smallerWords(rates, let_in);
  if (rates.refused < 0.1) return `${rate(arrive)} requests arrive each second, and all are admitted${smaller}.`;
  const away = `${rate(rates.refused)} are rejected at once with a time to retry`;
  return `${rate(arrive)} requests arrive each second. ${rate(let_in)} are admitted${smaller}; ${away}.`;
}

function smallerWords(rates, let_in) {
  if (rates.degraded < 0.1) return "";
  if (rates.degraded > 0.95 * let_in) return ", all with degraded answers";
  return `, ${rate(rates.degraded)} of them with degraded answers`;
}

function timeSentence(frame, rates, shares) {
  const used = frame.latency.of_deadline_p95;
  if (shares.on_time === null || shares.ended < 5) return "";
  if (shares.on_time < GOOD) {
    const lost =
      shares.wasted > 0.05
        ? `, and ${percent(shares.wasted)} % of the workers’ time goes to answers that reach no client`
        : "";
    return `Only ${percent(shares.on_time)} % of the admitted requests are on time${lost}.`;
  }
  if (used === null) return "Admitted requests are on time.";
  return `Admitted requests are on time: 95 of 100 answers take at most ${percent(used)} % of their deadline.`;
}
