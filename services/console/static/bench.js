/**
 * The storm bench: real load through the front door, from a process of its own. This page only asks it to start and to
 * stop, and shows what it says. A storm goes on when the page is closed; whoever opens it next sees it and can stop it.
 */

import { $, Keyed, make, setAttribute, setHidden, setText } from "./dom.js";
import { count, ms, NONE, percent, plural, rate } from "./format.js";
import { fared, Runs } from "./runs.js";
import { messageOf } from "./stream.js";

const MOST_TENANTS = 8; // told one by one
const BUSY_MS = 1000;
const IDLE_MS = 5000;
const URL = "/console/storm";
const PHASES = { preparing: "measuring capacity first", storming: "", settling: "waiting for the last answers" };

export class Bench {
  constructor(access, announcer, tenants) {
    this.access = access;
    this.announcer = announcer;
    this.state = null;
    this.chosen = null;
    this.values = new Map(); // of each scenario's sliders, as they were left
    this.timer = 0;
    this.runs = new Runs(access, tenants);
    this.tenants = tenants;
    this.buttons = new Keyed(
      $("scenarios"),
      (one) => one.name,
      (one) => new Scenario(one, (name) => this.#choose(name)),
    );
    this.figures = new Keyed(
      $("running-numbers"),
      (one) => one.name,
      (one) => new Figure(one),
    );
    this.watch = new Keyed(
      $("watch"),
      (sentence) => sentence,
      (sentence) => ({ root: make("li", {}, sentence), update() {} }),
    );
    $("start-form").addEventListener("submit", (event) => this.#start(event));
    $("stop").addEventListener("click", () => this.#stop());
    $("storm-bar-stop").addEventListener("click", () => this.#stop());
    $("scenarios").addEventListener("keydown", (event) => this.#arrow(event));
  }

  /** The router has a bench: ask it how it stands, for as long as it has. */
  enable(on) {
    setHidden($("storm"), !on);
    this.enabled = on;
    if (on) this.poll();
    else clearTimeout(this.timer);
  }

  async poll() {
    clearTimeout(this.timer);
    if (!this.enabled) return;
    if (!document.hidden) await this.#look();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), this.state?.running ? BUSY_MS : IDLE_MS);
  }

  async #look() {
    try {
      const answer = await this.access.get(URL);
      if (!answer.ok) return this.#problem(await messageOf(answer));
      this.#problem("");
      this.#show(await answer.json());
    } catch {
      this.#problem("The router does not respond.");
    }
  }

  #show(state) {
    const was = this.state?.running;
    this.state = state;
    if (was && !state.running)
      this.#ended(
        was,
        state.runs.find((run) => run.run === was.run),
      );
    this.buttons.update(state.scenarios);
    if (this.chosen === null) this.#choose(state.running?.scenario ?? state.scenarios[0]?.name);
    setHidden($("start-form"), state.running !== null);
    setHidden($("running"), state.running === null);
    setHidden($("storm-bar"), state.running === null);
    if (state.running && state.running.scenario !== this.chosen) this.#choose(state.running.scenario);
    for (const one of this.buttons.kept.values()) one.pick(this.chosen, state.running);
    if (state.running) this.#running(state.running);
    this.runs.update(state.runs);
  }

  #ended(was, summary) {
    const how = summary ? `${percent(summary.on_time_share)} % of what was sent was answered on time.` : "";
    this.announcer.say(`The storm “${was.title}” is over. ${how}`);
    if (document.activeElement === document.body) $("start").focus({ preventScroll: true });
  }

  // ---- what to start

  #choose(name) {
    const scenario = this.state?.scenarios.find((one) => one.name === name);
    if (scenario === undefined) return;
    this.chosen = name;
    for (const one of this.buttons.kept.values()) one.pick(name, this.state.running);
    setText($("caption"), scenario.caption);
    setText($("why-not"), scenario.available ? "" : scenario.why_not);
    $("start").disabled = !scenario.available;
    if (!this.values.has(name))
      this.values.set(name, Object.fromEntries(scenario.sliders.map((one) => [one.name, one.default])));
    $("sliders").replaceChildren(...scenario.sliders.map((slider) => this.#slider(slider, this.values.get(name))));
  }

  #slider(slider, values) {
    const id = `slider-${slider.name}`;
    if (slider.kind === "switch") {
      const box = make("input", { id, type: "checkbox", onchange: () => (values[slider.name] = box.checked ? 1 : 0) });
      box.checked = values[slider.name] === 1;
      return make("div", { class: "slider check" }, box, make("label", { for: id }, slider.title));
    }
    const shown = make("output", { for: id });
    const show = () => {
      setText(shown, said(values[slider.name], slider.unit));
      setAttribute(range, "aria-valuetext", shown.textContent);
    };
    const range = make("input", {
      id,
      type: "range",
      min: slider.min,
      max: slider.max,
      step: slider.step ?? 1,
      oninput: () => {
        values[slider.name] = Number(range.value);
        show();
      },
    });
    range.value = String(values[slider.name]);
    show();
    return make("div", { class: "slider" }, make("label", { for: id }, slider.title ?? slider.name), shown, range);
  }

  /** A radio group: the arrows go round. */
  #arrow(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const names = this.state?.scenarios.map((one) => one.name) ?? [];
    if (step === undefined || this.state.running || names.length === 0) return;
    event.preventDefault();
    this.#choose(names[(names.indexOf(this.chosen) + step + names.length) % names.length]);
    this.buttons.kept.get(this.chosen).root.focus();
  }

  async #start(event) {
    event.preventDefault();
    const body = { scenario: this.chosen, sliders: this.values.get(this.chosen) };
    if (await this.#write("POST", body)) this.announcer.say("The storm begins.");
    $("stop").focus({ preventScroll: true });
  }

  async #stop() {
    await this.#write("DELETE");
  }

  async #write(method, body) {
    try {
      const answer = await this.access.write(method, URL, body);
      const fault = answer.ok ? "" : await messageOf(answer);
      await this.poll();
      this.#problem(fault);
      return answer.ok;
    } catch {
      this.#problem("The router does not respond.");
      return false;
    }
  }

  #problem(words) {
    setText($("bench-problem"), words);
  }

  // ---- what goes on

  #running(run) {
    const left_s = Math.max(0, run.seconds - run.elapsed_s);
    const phase = PHASES[run.phase] || run.now || "";
    setText($("running-title"), run.title);
    setText($("running-phase"), `${phase ? `${phase}, ` : ""}second ${Math.floor(run.elapsed_s)} of ${run.seconds}`);
    $("running-progress").value = Math.min(1, run.elapsed_s / run.seconds);
    this.figures.update(numbersOf(run));
    $("running-tenants").replaceChildren(
      ...run.tenants.slice(0, MOST_TENANTS).flatMap((one) => fared(one, this.tenants)),
    );
    setText($("running-caption"), run.caption);
    this.watch.update(run.watch);
    setText($("storm-bar-text"), `${run.title}: ${plural(Math.ceil(left_s), "second")} left`);
  }
}

/** Whole where it is whole, with its unit. */
function said(value, unit) {
  const number = Number.isInteger(value) ? count(value) : String(Math.round(value * 100) / 100);
  return `${number} ${unit.replace(/^x\b/, "×")}`.trim();
}

function numbersOf(run) {
  const late = run.p95_ms === null ? NONE : `${ms(run.p95_ms)} of ${ms(run.deadline_ms)} ms`;
  return [
    ["load", `${rate(run.rate_per_s)} /s, capacity ${rate(run.capacity_per_s)} /s`],
    ["sent", count(run.sent)],
    ["on time", count(run.on_time)],
    ["rejected", count(run.refused)],
    ["late", count(run.late)],
    ["failed or disconnected", count(run.failed + run.gone)],
    ["p95 of the deadline", late],
  ].map(([name, value]) => ({ name, value }));
}

/** One number of the storm that goes on. */
class Figure {
  constructor({ name }) {
    this.value = make("dd", {}, "");
    this.root = make("div", {}, make("dt", {}, name), this.value);
  }

  update({ value }) {
    setText(this.value, value);
  }
}

class Scenario {
  constructor(scenario, onChoose) {
    this.name = scenario.name;
    this.root = make(
      "button",
      {
        type: "button",
        role: "radio",
        class: "scenario",
        "data-scenario": scenario.name,
        onclick: () => onChoose(scenario.name),
      },
      scenario.title,
    );
  }

  update(scenario) {
    setAttribute(this.root, "data-off", scenario.available ? null : "");
  }

  pick(chosen, running) {
    setAttribute(this.root, "aria-checked", String(this.name === chosen));
    this.root.tabIndex = this.name === chosen ? 0 : -1;
    this.root.disabled = running !== null;
  }
}
