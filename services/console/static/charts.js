/**
 * Four charts of the last minute. Now is at the right edge and stays there, so the axis never runs away under the eye.
 * Each has a legend with numbers (of the moment under the pointer, or of now) and the same as a table.
 */

import { $, make, makeSvg, setClass, setText } from "./dom.js";
import { count, ms, NONE, rate } from "./format.js";
import { SPAN_S } from "./history.js";
import { REFUSALS } from "./words.js";

const HEIGHT_PX = 190;
const MOST_TENANTS = 8;
const TABLE_EVERY_S = 5;
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2], [1, 3], [8, 2, 2, 2]];

/** A line of a chart: how it is called, its stroke (a name of the Colours or a tenant's hue), and where it is read. */
const line = (name, stroke, value, more = {}) => ({ name, stroke, value, ...more });

const CHARTS = [
  {
    title: "Are answers ready before their deadline?",
    unit: "ms",
    says: "Latency of what was answered in the last second, against the median deadline.",
    format: ms,
    lines: () => [
      line("deadline", "alarm", (one) => one.deadline_ms, { dash: [7, 4] }),
      line("p95", "water", (one) => one.p95_ms, { width: 2 }),
      line("p50", "quiet", (one) => one.p50_ms, { width: 1.5, dash: [3, 2] }),
    ],
  },
  {
    title: "Is capacity spent on useful answers?",
    unit: "tokens/s",
    says: "Goodput is work that was answered in time. Capacity is what the workers can do.",
    format: count,
    lines: () => [
      line("capacity", "ink", (one) => one.capacity, { dash: [7, 4] }),
      line("goodput", "water", (one) => one.got, { width: 2, fill: true }),
    ],
  },
  {
    title: "Why are requests rejected?",
    unit: "requests/s",
    short: "/s",
    says: "Rejections by reason. Each tells the client when to retry.",
    format: rate,
    lines: () =>
      Object.entries(REFUSALS).map(([code, name], n) =>
        line(name, ["t4", "t5", "t2", "t0", "t6", "t1"][n], (one) => one.rates?.refusals[code], {
          dash: DASHES[n],
          width: 1.6,
          mayHide: true,
        }),
      ),
  },
  {
    title: "Whose queue grows?",
    unit: "queued requests",
    short: "wait",
    says: "Queued requests of each tenant.",
    format: count,
    lines: (tenants) =>
      tenants.map((tenant, n) =>
        line(`${tenant.letter} ${tenant.id}`, tenant.hue, (one) => one.waiting[tenant.id] ?? 0, {
          dash: DASHES[n],
          width: 1.6,
        }),
      ),
  },
];

export class Charts {
  constructor(tenants, colours) {
    this.tenants = tenants;
    this.charts = CHARTS.map((spec) => new Chart(spec, colours));
    $("charts").append(...this.charts.map((chart) => chart.root));
  }

  update(history, frame) {
    const present = frame.tenants.map((tenant) => this.tenants.get(tenant.id)).sort((a, b) => a.index - b.index);
    const now_s = history.newest.at_s;
    const xs = history.records.map((record) => record.at_s - now_s);
    for (const chart of this.charts) chart.update(xs, history.records, present.slice(0, MOST_TENANTS));
  }

  /** After a change of theme. */
  repaint() {
    for (const chart of this.charts) chart.plot?.redraw(false);
  }
}

class Chart {
  constructor(spec, colours) {
    this.spec = spec;
    this.colours = colours;
    this.key = null;
    this.lines = [];
    this.seen = true;
    this.legend = make("ul", { class: "legend-list" });
    this.box = make("div", { class: "plot", "aria-hidden": "true" });
    this.body = make("tbody");
    this.head = make("tr");
    const caption = make("caption", { class: "visually-hidden" }, `${spec.title} In ${spec.unit}`);
    const table = make("table", {}, caption, make("thead", {}, this.head), this.body);
    const scroll = make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `${spec.title} As a table` },
      table,
    );
    this.table = make("details", { class: "as-table" }, make("summary", {}, "The same as a table"), scroll);
    this.root = make(
      "figure",
      { class: "chart" },
      make("figcaption", {}, make("h2", {}, spec.title), make("p", { class: "lede" }, `${spec.says} In ${spec.unit}.`)),
      this.legend,
      this.box,
      this.table,
    );
    new ResizeObserver(() => this.plot?.setSize(this.#size())).observe(this.box);
    new IntersectionObserver(([entry]) => (this.seen = entry.isIntersecting), { rootMargin: "200px" }).observe(
      this.root,
    );
  }

  update(xs, records, tenants) {
    if (this.plot && !this.seen) return; // lines and columns change together: a new plot soon asks for its legend
    const lines = this.spec.lines(tenants);
    const key = lines.map((one) => one.name).join("\n");
    if (key !== this.key) this.#build(lines, key);
    if (!this.seen) return;
    this.xs = xs;
    this.columns = this.lines.map((one) => records.map((record) => one.value(record) ?? null));
    this.plot.setData([xs, ...this.columns]);
    this.#legend(this.plot.cursor.idx ?? xs.length - 1);
    if (this.table.open) this.#rows();
  }

  #build(lines, key) {
    this.key = key;
    this.lines = lines;
    this.plot?.destroy();
    this.plot = new globalThis.uPlot(this.#options(), [[], ...lines.map(() => [])], this.box);
    this.values = lines.map(() => make("b", {}, NONE));
    this.legend.replaceChildren(
      ...lines.map((one, n) =>
        make(
          "li",
          {},
          this.#key(one),
          `${one.name} `,
          this.values[n],
          make("span", { class: "unit" }, ` ${this.spec.short ?? this.spec.unit}`),
        ),
      ),
    );
    this.head.replaceChildren(
      make("th", { scope: "col" }, "Seconds ago"),
      ...lines.map((one) => make("th", { scope: "col" }, one.name)),
    );
  }

  /** The stroke of a line, drawn as it is in the chart. */
  #key(one) {
    const dash = one.dash?.length ? { "stroke-dasharray": one.dash.join(" ") } : {};
    const path = makeSvg("path", { d: "M0 3h24", ...dash });
    return makeSvg("svg", { viewBox: "0 0 24 6", class: `key ${one.stroke}`, "aria-hidden": "true" }, path);
  }

  #colour(name) {
    return this.colours.strokes[name] ?? this.colours[name];
  }

  #size() {
    return { width: Math.max(200, this.box.clientWidth), height: HEIGHT_PX };
  }

  #options() {
    const axis = { stroke: () => this.colours.quiet, font: this.colours.font, ticks: { show: false } };
    const grid = { stroke: () => this.colours.line, width: 1 };
    return {
      ...this.#size(),
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false }, points: { size: 6 } },
      scales: { x: { time: false, range: [-SPAN_S, 0] }, y: { range: (_, __, top) => [0, niceTop(top)] } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 26,
          splits: () => [-60, -45, -30, -15, 0],
          values: (_, at) => at.map((s) => (s === 0 ? "now" : `${s} s`)),
        },
        { ...axis, grid, size: 54, values: (_, at) => at.map(tick), space: 40 },
      ],
      series: [{}, ...this.lines.map((one) => this.#series(one))],
      hooks: { setCursor: [(plot) => this.xs && this.#legend(plot.cursor.idx ?? this.xs.length - 1)] },
    };
  }

  #series(one) {
    return {
      label: one.name,
      stroke: () => this.#colour(one.stroke),
      fill: one.fill ? () => `color-mix(in srgb, ${this.#colour(one.stroke)} 14%, transparent)` : undefined,
      width: one.width ?? 1.4,
      dash: one.dash,
      points: { show: false },
      spanGaps: false,
    };
  }

  #legend(index) {
    this.lines.forEach((one, n) => {
      setText(this.values[n], this.spec.format(this.columns[n][index]));
      if (one.mayHide) this.#fade(n);
    });
  }

  /** A reason that nobody was given in this minute steps back. */
  #fade(n) {
    setClass(this.legend.children[n], "unused", !this.columns[n].some((value) => value > 0));
  }

  #rows() {
    const rows = [];
    for (let ago_s = 0; ago_s <= SPAN_S; ago_s += TABLE_EVERY_S) {
      const at = this.xs.findLastIndex((x) => x <= -ago_s);
      if (at < 0) break;
      rows.push([ago_s, ...this.columns.map((column) => this.spec.format(column[at]))]);
    }
    while (this.body.rows.length > rows.length) this.body.lastElementChild.remove();
    rows.forEach((row, n) => {
      const tr = this.body.rows[n] ?? this.body.appendChild(make("tr"));
      while (tr.cells.length > row.length) tr.lastElementChild.remove();
      row.forEach((cell, m) =>
        setText(
          tr.cells[m] ?? tr.appendChild(make(m === 0 ? "th" : "td", m === 0 ? { scope: "row" } : {})),
          String(cell),
        ),
      );
    });
  }
}

/** At the side of a chart: a half is not to be taken for a whole. */
const tick = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));

/** The end of the axis: a little above what is shown, and a number one can read. */
export function niceTop(top) {
  if (!(top > 0)) return 1;
  const wanted = top * 1.08;
  const ten = 10 ** Math.floor(Math.log10(wanted));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * ten).find((n) => n >= wanted);
}
