/** The first and the last part of the picture: what the door decides, and how what it let in has ended. */

import { $, make, setText } from "./dom.js";
import { Fall } from "./fall.js";
import { count, rate } from "./format.js";
import { DECISIONS } from "./words.js";

const DOOR = [
  { name: "admit", shape: "disc", mark: "●", title: "Admitted", rate: "admitted" },
  { name: "degrade", shape: "half", mark: "◒", title: "Admitted, degraded", rate: "degraded" },
  { name: "refuse", shape: "triangle", mark: "▼", title: "Rejected", rate: "refused" },
];
const OUT = [
  { name: "served", shape: "disc", mark: "●", title: "On time", rate: "served" },
  { name: "expire", shape: "cross", mark: "✕", title: "Expired in the queue", rate: "expired" },
  { name: "lost", shape: "diamond", mark: "◆", title: "Late or lost", rate: "lost" },
];

const FAST_MS = 38; // 25 pictures a second are smooth enough, and leave the machine to the system that is watched
const SLOW_MS = 1000;

class Gate {
  constructor(columns, counters, canvas, colours, onPick) {
    this.fall = new Fall(canvas, columns, colours, onPick);
    this.columns = columns.map((column) => {
      const now = make("b", {}, "0");
      const total = make("span", { class: "total", "data-total": column.rate }, "0");
      const name = make(
        "span",
        { class: "name" },
        make("span", { class: "glyph", "aria-hidden": "true" }, column.mark),
        ` ${column.title}`,
      );
      counters.append(
        make(
          "div",
          { class: `column ${column.name}` },
          name,
          make("span", { class: "now" }, now, make("span", { class: "unit" }, " /s")),
          make("span", { class: "since" }, total, " in all"),
        ),
      );
      return { rate: column.rate, now, total };
    });
  }

  update(newest) {
    for (const column of this.columns) {
      setText(column.now, rate(newest.rates[column.rate]));
      setText(column.total, count(newest[column.rate]));
    }
  }
}

export class Gates {
  constructor(tenants, colours, onPick) {
    this.tenants = tenants;
    this.colours = colours;
    this.door = new Gate(DOOR, $("door-columns"), $("door-fall"), colours, onPick);
    this.out = new Gate(OUT, $("out-columns"), $("out-fall"), colours, onPick);
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.drawn_ms = 0;
  }

  /** New decisions fall; `offset_ms` leads from the router's clock to this page's. */
  drop(decisions, offset_ms) {
    for (const decision of decisions) {
      const column = DECISIONS[decision.what]?.column;
      if (column === undefined) continue;
      const gate = DOOR.some((one) => one.name === column) ? this.door : this.out;
      gate.fall.add(column, decision.id, this.tenants.get(decision.tenant).hue, decision.at_ms + offset_ms);
    }
  }

  update(newest) {
    this.door.update(newest);
    this.out.update(newest);
  }

  /** Called for each picture of the screen; draws while something falls. */
  draw(now_ms) {
    const falls = !this.calm.matches && (this.door.fall.busy || this.out.fall.busy);
    if (now_ms - this.drawn_ms < (falls ? FAST_MS : SLOW_MS)) return;
    this.drawn_ms = now_ms;
    this.door.fall.draw(now_ms);
    this.out.fall.draw(now_ms);
  }
}
