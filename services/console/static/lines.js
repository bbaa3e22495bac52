/**
 * The tenants' lines. The rows keep their places, so that one can follow a line with the eye; the order in which the
 * scheduler will visit them stands above, and as a number in each row.
 */

import { $, Keyed, make, makeSvg, setAttribute, setClass, setHidden, setShare, setText } from "./dom.js";
import { count, percent } from "./format.js";

const HEADS = 32;
const STEP = 10; // units of the drawing: a column of 8 and a gap of 2
const HEIGHT = 26;
const TURNS_TOLD = 8;
const FIT = 7; // rows before the list scrolls

const POSITIONS = {
  new: "new: starts first",
  now: "in this round",
  next: "in the next round",
  later: "in debt: later",
  away: "nothing to start",
};

export class Lines {
  constructor(tenants) {
    this.tenants = tenants;
    this.rows = new Keyed(
      $("lines"),
      (tenant) => tenant.id,
      (tenant) => new Row(tenants.get(tenant.id), tenant.id),
    );
    this.turns = new Keyed(
      $("turns"),
      (turn) => turn.key,
      () => new Turn(),
    );
  }

  update(frame) {
    const told = frame.tenants;
    const known = (tenant) => this.tenants.get(tenant.id).index;
    this.rows.update([...told].sort((a, b) => known(a) - known(b)));
    const inTurn = told.filter((tenant) => tenant.place !== null).sort((a, b) => a.place - b.place);
    this.turns.update(
      inTurn
        .slice(0, TURNS_TOLD)
        .map((tenant, key) => ({ key, tenant: this.tenants.get(tenant.id), now: tenant.position })),
    );
    setClass($("turns"), "nobody", inTurn.length === 0);
    setAttribute($("lines"), "tabindex", told.length > FIT ? 0 : null); // then it scrolls, also by keyboard
    setText($("waiting"), count(frame.waiting.requests));
    setText($("waiting-bound"), count(frame.waiting.bound));
    this.#others(frame.other_tenants, told.length);
  }

  #others(others, told) {
    const empty = $("lines-empty");
    setHidden(empty, told > 0 && others.tenants === 0);
    setText(
      empty,
      others.tenants > 0
        ? `and ${count(others.tenants)} more tenants with ${count(others.waiting)} queued requests`
        : "No requests yet.",
    );
  }
}

/** One of the next turns: a letter in its hue. */
class Turn {
  constructor() {
    this.root = make("li", { class: "sign" });
  }

  update({ key, tenant, now }) {
    setAttribute(
      this.root,
      "class",
      `sign ${tenant.hue}${key === 0 ? " first" : ""}${now === "later" ? " later" : ""}`,
    );
    setText(this.root, tenant.letter);
    setAttribute(this.root, "title", `${tenant.id}: ${POSITIONS[now] ?? now}`);
  }
}

class Row {
  constructor(sign, id) {
    this.place = make("span", { class: "place" });
    this.waiting = make("b", {}, "0");
    this.bound = make("span", { class: "muted" });
    this.facts = make("span", { class: "facts" });
    this.filled = makeSvg("path", { class: "filled" });
    this.frames = makeSvg("path", { class: "frames" });
    this.over = makeSvg("path", { class: "over" });
    this.heads = makeSvg(
      "svg",
      {
        class: "heads",
        viewBox: `0 0 ${HEADS * STEP} ${HEIGHT}`,
        "aria-hidden": "true",
        preserveAspectRatio: "xMinYMid meet",
      },
      this.frames,
      this.filled,
      this.over,
    );
    this.gauge = make(
      "span",
      { class: "gauge", "aria-hidden": "true" },
      make("span", { class: "debt" }),
      make("span", { class: "deficit" }),
    );
    this.balance = make("span", { class: "balance" });
    this.root = make(
      "li",
      { class: `tenant ${sign.hue}` },
      make("span", { class: `sign ${sign.hue}`, "aria-hidden": "true" }, sign.letter),
      make("span", { class: "who" }, make("b", { class: "id", title: id }, id), this.facts),
      make("span", { class: "counts" }, this.waiting, this.bound),
      this.place,
      this.heads,
      make("span", { class: "account" }, this.gauge, this.balance),
    );
  }

  update(tenant) {
    setText(this.waiting, count(tenant.waiting));
    setText(this.bound, tenant.waiting > tenant.bound ? " queued" : ` of ${count(tenant.bound)} queued`);
    setText(this.facts, `weight ${tenant.weight} · share ${percent(tenant.share)} % · runs ${count(tenant.running)}`);
    setClass(this.root, "first", tenant.place === 0);
    setText(this.place, tenant.place === null ? "" : tenant.place === 0 ? "▶ next" : `turn ${tenant.place + 1}`);
    this.#heads(tenant);
    this.#balance(tenant);
  }

  /** Each head a column that fills from below; the part beyond the first ones is told by the count. */
  #heads(tenant) {
    let frames = "";
    let filled = "";
    let over = "";
    tenant.heads.slice(0, HEADS).forEach((age, n) => {
      const x = n * STEP + 1;
      frames += `M${x} 1h8v${HEIGHT - 2}h-8z`;
      const high = Math.round(Math.min(Math.max(age, 0), 1) * (HEIGHT - 2) * 2) / 2;
      if (high > 0) filled += `M${x} ${HEIGHT - 1}h8v${-high}h-8z`;
      if (age >= 1) over += `M${x} 1l8 ${HEIGHT - 2}`;
    });
    setAttribute(this.frames, "d", frames);
    setAttribute(this.filled, "d", filled);
    setAttribute(this.over, "d", over);
  }

  #balance(tenant) {
    const balance = tenant.deficit_tokens - tenant.debt_tokens;
    const scale = Math.max(tenant.quantum_tokens * 2, Math.abs(balance), 1);
    setShare(this.gauge, "--deficit", tenant.deficit_tokens / scale);
    setShare(this.gauge, "--debt", tenant.debt_tokens / scale);
    const what = balance < 0 ? "debt" : "deficit";
    setText(
      this.balance,
      `${what} ${count(Math.abs(Math.round(balance)))} tokens · quantum ${count(tenant.quantum_tokens)}`,
    );
  }
}
