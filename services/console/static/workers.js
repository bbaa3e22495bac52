/**
 * The workers and their slots. A request keeps its slot while it runs, so a slot is a place the eye can rest on. Each
 * worker is one stop of the Tab key; the arrows go from slot to slot, Enter opens the life of the request.
 */

import { $, Keyed, make, setAttribute, setClass, setHidden, setShare, setText } from "./dom.js";
import { count, ms } from "./format.js";

const MOST_SLOTS = 64; // drawn for one worker; the count says how many there are

export class Workers {
  constructor(tenants, onPick) {
    this.cards = new Keyed(
      $("workers"),
      (worker) => worker.name,
      (worker) => new Card(worker, tenants, onPick),
    );
    this.more = make("p", { class: "muted" });
    $("workers").after(this.more);
  }

  update(frame) {
    this.cards.update(frame.workers);
    setText($("inflight"), count(frame.inflight.now));
    setText($("cap"), count(frame.inflight.cap));
    const more = frame.other_workers ?? 0;
    setHidden(this.more, more === 0);
    setText(this.more, more > 0 ? `and ${count(more)} more workers` : "");
  }
}

class Card {
  constructor(worker, tenants, onPick) {
    this.tenants = tenants;
    this.onPick = onPick;
    this.holders = []; // the request in each slot, or null
    this.slots = [];
    this.state = make("span", { class: "state" });
    this.batch = make("span", { class: "batch" });
    this.grid = make("div", {
      class: "slots",
      role: "toolbar",
      "aria-label": `Slots of ${worker.name}`,
      onkeydown: (event) => this.#move(event),
    });
    this.root = make(
      "li",
      { class: "worker" },
      make("p", { class: "worker-head" }, make("b", {}, worker.name), this.state),
      this.grid,
      this.batch,
    );
  }

  update(worker) {
    this.#fit(Math.min(MOST_SLOTS, Math.max(worker.slots + worker.lookahead, worker.requests.length)));
    this.#seat(worker.requests);
    const free = worker.healthy && !worker.draining && !worker.resting;
    this.slots.forEach((slot, at) => slot.update(this.holders[at], at >= worker.slots));
    setClass(this.root, "down", !worker.healthy);
    setClass(this.root, "shut", !free);
    setText(this.state, stateOf(worker));
    setText(this.batch, batchOf(worker));
    this.#stop();
  }

  #fit(wanted) {
    while (this.slots.length < wanted) {
      const slot = new Slot(this.slots.length, this.tenants, (id) => this.onPick(id));
      this.slots.push(slot);
      this.holders.push(null);
      this.grid.append(slot.root);
    }
    while (this.slots.length > wanted) {
      this.slots.pop().root.remove();
      this.holders.pop();
    }
  }

  /** Who was there stays; newcomers take the first free slot. */
  #seat(requests) {
    const byId = new Map(requests.map((request) => [request.id, request]));
    for (let at = 0; at < this.holders.length; at++) {
      const still = this.holders[at] && byId.get(this.holders[at].id);
      this.holders[at] = still ?? null;
      if (still) byId.delete(still.id);
    }
    let at = 0;
    for (const request of byId.values()) {
      while (at < this.holders.length && this.holders[at] !== null) at++;
      if (at < this.holders.length) this.holders[at] = request;
    }
  }

  /** Exactly one slot is in the Tab order. */
  #stop() {
    const current = this.slots.findIndex((slot) => slot.root.tabIndex === 0);
    if (current < 0 && this.slots.length > 0) this.slots[0].root.tabIndex = 0;
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = this.slots.findIndex((slot) => slot.root === document.activeElement);
    if (step === undefined || at < 0) return;
    event.preventDefault();
    const to = this.slots[(at + step + this.slots.length) % this.slots.length];
    this.slots[at].root.tabIndex = -1;
    to.root.tabIndex = 0;
    to.root.focus();
  }
}

class Slot {
  constructor(at, tenants, onPick) {
    this.at = at;
    this.tenants = tenants;
    this.id = null;
    this.letter = make("span", { class: "letter" });
    this.root = make(
      "button",
      {
        type: "button",
        class: "slot",
        tabindex: "-1",
        "aria-label": `Slot ${at + 1}: free`,
        "aria-disabled": "true",
        onclick: () => this.id !== null && onPick(this.id),
      },
      this.letter,
      make("span", { class: "used" }),
    );
  }

  update(request, ahead) {
    if (request === null) {
      if (this.id === null && this.root.classList.contains("ahead") === ahead) return;
      this.id = null;
      setAttribute(this.root, "class", ahead ? "slot ahead" : "slot");
      setText(this.letter, "");
      setAttribute(this.root, "aria-label", `Slot ${this.at + 1}: free`);
      setAttribute(this.root, "aria-disabled", "true");
      setShare(this.root, "--used", 0);
      return;
    }
    const tenant = this.tenants.get(request.tenant);
    const used = request.of_deadline ?? 0;
    this.id = request.id;
    setAttribute(this.root, "class", `slot taken ${tenant.hue}${ahead ? " ahead" : ""}${used >= 1 ? " over" : ""}`);
    setText(this.letter, tenant.letter);
    setShare(this.root, "--used", used);
    setAttribute(this.root, "aria-disabled", null);
    setAttribute(
      this.root,
      "aria-label",
      `Slot ${this.at + 1}: ${request.tenant}, ${Math.round(used * 10) * 10} % of its deadline has passed. Open it.`,
    );
  }
}

function stateOf(worker) {
  if (!worker.healthy) return "✕ does not respond";
  if (worker.leaving) return "leaves";
  if (worker.draining) return "draining";
  if (worker.resting) return "pausing: it rejected a request";
  const more = Math.max(0, worker.inflight - worker.slots);
  return `${count(worker.inflight - more)} of ${count(worker.slots)} slots${more ? ` and ${count(more)} ahead` : ""}`;
}

function batchOf(worker) {
  const { size, step_ms, waiting, kv_share } = worker.batch ?? {};
  if (size === null || size === undefined) return worker.kind === "weir" ? "" : `a server of kind ${worker.kind}`;
  const step = step_ms === null || step_ms === undefined ? "" : ` · a step takes ${ms(step_ms)} ms`;
  const queue = waiting ? ` · ${count(waiting)} in its own queue` : "";
  const memory = kv_share === null || kv_share === undefined ? "" : ` · KV cache ${Math.round(kv_share * 100)} %`;
  return `batch of ${count(size)}${step}${queue}${memory}`;
}
