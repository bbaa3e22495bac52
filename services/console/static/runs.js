/** The storms so far, newest first: what each did, with what switched off, and its report to keep. */

import { $, Keyed, make, setHidden, setShare, setText } from "./dom.js";
import { clock, ms, NONE, percent } from "./format.js";
import { POLICIES } from "./words.js";

const MOST_EACH = 8; // tenants told in a row
const REPORT = "/console/storm/report";
const RUN = "/console/storm/run";

export class Runs {
  constructor(access, tenants) {
    this.rows = new Keyed(
      $("run-rows"),
      ({ run }) => run.run,
      (item) => new Row(item, access, tenants),
    );
  }

  /** Newest first. Beside each the one before it of the same kind, if there is one. */
  update(runs) {
    setHidden($("runs"), runs.length === 0);
    const before = (at) => runs.slice(at + 1).find((older) => older.scenario === runs[at].scenario);
    this.rows.update(runs.map((run, at) => ({ run, before: before(at) })));
  }
}

class Row {
  constructor({ run, before }, access, tenants) {
    const share = make("span", { class: "meter", "aria-hidden": "true" });
    setShare(share, "--share", run.on_time_share ?? 0);
    const ended = run.ended === "done" ? "" : `, ${run.ended}`;
    const when = make("span", { class: "of" }, `${clock(run.began_at_ms)}${ended}`);
    this.each = make("span", { class: "each" });
    this.root = make(
      "tr",
      {},
      make("th", { scope: "row" }, run.title, when),
      make("td", {}, offOf(run)),
      make("td", {}, share, ` ${percent(run.on_time_share)} %`, this.each),
      make("td", {}, unit(percent(run.goodput_share), "%")),
      make("td", {}, unit(percent(run.wasted_share), "%")),
      make("td", {}, run.p95_ms === null ? NONE : `${ms(run.p95_ms)} of ${ms(run.deadline_ms)} ms`),
      make("td", {}, ...links(run, before, access)),
    );
    this.#tenants(run, access, tenants);
  }

  update() {} // it is over, and stays so

  /** How each tenant fared: the list of runs leaves that out, so it is asked for once. */
  async #tenants(run, access, tenants) {
    const answer = await access.get(`${RUN}?run=${encodeURIComponent(run.run)}`).catch(() => null);
    if (!answer?.ok) return;
    const { tenants: each } = await answer.json();
    this.each.replaceChildren(...each.slice(0, MOST_EACH).flatMap((one) => fared(one, tenants)));
  }
}

/** A tenant's sign, and what share of what it sent was answered on time. */
export function fared(one, tenants) {
  const sign = tenants.get(one.id);
  const share = percent(one.sent > 0 ? one.on_time / one.sent : null);
  return [
    make(
      "span",
      { class: "fared" },
      make("span", { class: `sign ${sign.hue}`, "aria-hidden": "true" }, sign.letter),
      ` ${one.id} ${share} %`,
    ),
  ];
}

function links(run, before, access) {
  const found = [link(run, "Save report", `Save the report of ${run.title}, ${clock(run.began_at_ms)}`, "", access)];
  if (before === undefined) return found;
  const words = `Save the report of ${run.title}, ${clock(run.began_at_ms)}, beside that of ${clock(before.began_at_ms)}`;
  return [...found, " ", link(run, "beside the one before", words, `&with=${encodeURIComponent(before.run)}`, access)];
}

function link(run, text, words, more, access) {
  const href = `${REPORT}?run=${encodeURIComponent(run.run)}${more}&save=1`;
  const name = `weir-${run.scenario}-${run.run}.html`;
  const found = make("a", { href, download: name, "aria-label": words }, text);
  if (access.given) found.addEventListener("click", (event) => keep(event, access, href, name));
  return found;
}

const unit = (value, sign) => (value === NONE ? NONE : `${value} ${sign}`);

function offOf(run) {
  if (run.policy === null || run.policy === undefined) return NONE;
  const off = Object.keys(POLICIES).filter((name) => run.policy[name] === false);
  const words = off.map((name) => POLICIES[name].word).join(", ") || "nothing";
  return run.policy_changed ? `${words} (changed meanwhile)` : words;
}

/** With a token a plain link would be refused: fetch it, and hand it over. */
async function keep(event, access, href, name) {
  event.preventDefault();
  const answer = await access.get(href);
  if (!answer.ok) return;
  const link = make("a", { href: URL.createObjectURL(await answer.blob()), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
