/**
 * The newest decisions as a table: what the falling marks say, in words, and a door to the life of each request. It
 * changes once a second at most, and holds still while somebody points at it or is in it with the keyboard.
 */

import { $, Keyed, make, setAttribute, setText } from "./dom.js";
import { ms } from "./format.js";
import { DECISIONS, reason } from "./words.js";

const ROWS = 10;
const EVERY_MS = 1000;
const MARKS = { admit: "●", degrade: "◒", refuse: "▼", served: "●", expire: "✕", lost: "◆" };

export class Decisions {
  constructor(tenants, onPick) {
    this.newest = [];
    this.shown_ms = -EVERY_MS;
    this.held = false;
    this.life = $("life"); // while it is open, the row it came from has to be there to go back to
    this.rows = new Keyed(
      $("decision-rows"),
      (decision) => decision.n,
      (decision) => new Row(decision, tenants, onPick),
    );
    const table = $("decision-table");
    const hold = (on) => () => this.#hold(on);
    table.addEventListener("pointerenter", hold(true));
    table.addEventListener("pointerleave", hold(false));
    table.addEventListener("focusin", hold(true));
    table.addEventListener("focusout", hold(false));
  }

  add(decisions) {
    this.newest = [...[...decisions].reverse(), ...this.newest].slice(0, 4 * ROWS);
  }

  update(now_ms) {
    if (this.held || this.life.open || now_ms - this.shown_ms < EVERY_MS) return;
    this.shown_ms = now_ms;
    this.rows.update(this.#mixed());
  }

  /** The newest ones, but at least two of each kind if there are, so that a flood of one hides nothing. */
  #mixed() {
    const perKind = new Map();
    const kept = new Set();
    for (const decision of this.newest) {
      const seen = perKind.get(decision.what) ?? 0;
      perKind.set(decision.what, seen + 1);
      if (seen < 2) kept.add(decision);
    }
    for (const decision of this.newest) if (kept.size < ROWS) kept.add(decision);
    return [...kept].sort((a, b) => b.n - a.n).slice(0, ROWS);
  }

  #hold(on) {
    this.held = on;
    setText($("decisions-held"), on ? "The list is paused." : "");
  }
}

class Row {
  constructor(decision, tenants, onPick) {
    const sign = tenants.get(decision.tenant);
    const kind = DECISIONS[decision.what] ?? { word: decision.what, column: "" };
    const open = make(
      "button",
      { type: "button", class: "open", onclick: () => onPick(decision.id) },
      shortId(decision.id),
    );
    setAttribute(open, "aria-label", `Open the details of request ${decision.id}`);
    this.root = make(
      "tr",
      { class: kind.column },
      make("td", {}, open),
      make(
        "td",
        {},
        make("span", { class: `sign ${sign.hue}`, "aria-hidden": "true" }, sign.letter),
        ` ${decision.tenant}`,
      ),
      make(
        "td",
        { class: "what" },
        make("span", { class: "glyph", "aria-hidden": "true" }, MARKS[kind.column] ?? "·"),
        ` ${kind.word}`,
      ),
      make("td", { class: "why" }, whyOf(decision)),
      make("td", { class: "n" }, unit(decision.predicted_ms)),
      make("td", { class: "n" }, unit(decision.wait_ms)),
    );
  }

  update() {} // what was decided stays so
}

const unit = (value) => (value === null ? "" : `${ms(value)} ms`);

function whyOf(decision) {
  if (decision.why !== "") return reason(decision.why);
  return decision.what === "degrade" ? `at level ${decision.level}` : "";
}

export const shortId = (id) => (id.length > 14 ? `${id.slice(0, 6)}…${id.slice(-6)}` : id);
