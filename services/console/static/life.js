/** The life of one request: its way from arrival to settlement, drawn to scale, and the numbers that decided it. */

import { $, make, setText } from "./dom.js";
import { count, ms, span } from "./format.js";
import { messageOf } from "./stream.js";
import { drawn } from "./timeline.js";
import { ENDS, REFUSALS } from "./words.js";

const PADDING_PX = 40;
const AGAIN_MS = 1000; // while it still lives

const NUMBERS = [
  [
    "What was predicted?",
    [
      ["deadline_ms", "its deadline", "ms"],
      ["predicted_wait_ms", "predicted wait", "ms"],
      ["predicted_wait_q95_ms", "predicted wait, 95th percentile", "ms"],
      ["margin", "share of the deadline that admission plans with", "share"],
      ["queue_depth", "queued requests at arrival", ""],
      ["hint_ms", "told to retry in", "ms"],
    ],
  ],
  [
    "How long did it take?",
    [
      ["waited_ms", "waited in the queue", "ms"],
      ["retrieval_ms", "retrieval took", "ms"],
      ["first_token_ms", "first token after", "ms"],
      ["total_ms", "in total", "ms"],
      ["attempts", "attempts at a worker", ""],
    ],
  ],
  [
    "What did it cost?",
    [
      ["prompt_tokens", "prompt", "tokens"],
      ["context_tokens", "passages in it", "tokens"],
      ["max_tokens", "requested at most", "tokens"],
      ["granted_tokens", "allowed at most", "tokens"],
      ["completion_tokens", "generated", "tokens"],
      ["charge_tokens", "charged to its tenant", "tokens"],
    ],
  ],
];

export class Life {
  constructor(access, tenants) {
    this.access = access;
    this.tenants = tenants;
    this.dialog = $("life");
    this.again = 0;
    this.asked = null;
    $("life-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.#closed());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  open(id) {
    this.from = document.activeElement;
    this.asked = id;
    setText($("life-title"), "Request details");
    $("life-body").replaceChildren(make("p", { class: "muted" }, "Loading."));
    if (!this.dialog.open) this.dialog.showModal();
    this.#load(id);
  }

  #closed() {
    clearTimeout(this.again);
    this.asked = null;
    if (this.from?.isConnected) this.from.focus();
  }

  async #load(id) {
    clearTimeout(this.again);
    try {
      const answer = await this.access.get(`/console/requests/${encodeURIComponent(id)}`);
      if (this.asked !== id) return;
      if (answer.status === 404) return this.#say(`Request ${id} is no longer remembered: only the last 2,000 are.`);
      if (!answer.ok) return this.#say(await messageOf(answer));
      this.#show(await answer.json());
    } catch {
      if (this.asked === id) this.#say("The router does not respond.");
    }
  }

  #say(words) {
    $("life-body").replaceChildren(make("p", {}, words));
  }

  #show(life) {
    const sign = this.tenants.get(life.tenant);
    setText($("life-title"), titleOf(life));
    $("life-body").replaceChildren(
      make(
        "p",
        { class: "life-of" },
        make("span", { class: `sign ${sign.hue}`, "aria-hidden": "true" }, sign.letter),
        ` ${life.tenant} asked ${life.model || "a model"} · class ${life.class} · level ${life.level} · `,
        make("code", {}, life.id),
      ),
      ...told(life),
      drawn(life, Math.max(260, $("life-body").clientWidth - PADDING_PX)),
      events(life),
      ...numbers(life),
    );
    if (life.state !== "ended") this.again = setTimeout(() => this.#load(life.id), AGAIN_MS);
  }
}

function titleOf(life) {
  const total = life.numbers.total_ms;
  const took = total === null || total === undefined ? "" : ` after ${span(total)}`;
  if (life.state === "waiting") return "It is queued";
  if (life.state === "running") return `It runs on ${life.numbers.worker ?? "a worker"}`;
  if (life.outcome === "served") return `Answered${took}, of ${span(life.deadline_ms)}`;
  if (life.outcome in REFUSALS) return `Rejected at admission: ${REFUSALS[life.outcome]}`;
  return `${ENDS[life.outcome] ?? `Ended as ${life.outcome.replaceAll("_", " ")}`}${took}`;
}

function told(life) {
  const words = [];
  if (life.message) words.push(`Message to the client: ${life.message}`);
  if (life.degraded?.length) words.push(`Cut from its answer: ${life.degraded.join(", ")}.`);
  return words.map((sentence) => make("p", { class: "told" }, sentence));
}

function events(life) {
  return make(
    "ol",
    { class: "events" },
    ...life.timeline.map((event) =>
      make(
        "li",
        {},
        make("span", { class: "at" }, `${ms(event.at_ms)} ms`),
        make("span", {}, make("b", {}, event.what), event.detail ? ` ${event.detail}` : ""),
      ),
    ),
  );
}

function numbers(life) {
  const all = { ...life.numbers, deadline_ms: life.deadline_ms };
  return NUMBERS.flatMap(([title, rows]) => {
    const known = rows.filter(([key]) => all[key] !== null && all[key] !== undefined);
    if (known.length === 0) return [];
    return make(
      "section",
      { class: "life-numbers" },
      make("h3", {}, title),
      make(
        "dl",
        {},
        ...known.map(([key, name, unit]) =>
          make("div", {}, make("dt", {}, name), make("dd", {}, said(all[key], unit))),
        ),
      ),
    );
  });
}

function said(value, unit) {
  if (unit === "share") return `${Math.round(value * 100)} %`;
  if (unit === "ms") return `${ms(value)} ms`;
  return unit === "" ? count(value) : `${count(value)} ${unit}`;
}
