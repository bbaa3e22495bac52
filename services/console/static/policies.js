/** Switches for the three policies, so that one sees what each is for. They show what is, as the router says it. */

import { $, make, setAttribute, setClass, setHidden, setText } from "./dom.js";
import { list } from "./format.js";
import { messageOf } from "./stream.js";
import { POLICIES } from "./words.js";

/** The sentence in the picture that each policy makes true, and what is true without it. */
const WITHOUT = {
  admission: ["door-lede", "Admission is off: every request that fits into the queue is admitted."],
  fairness: ["lines-lede", "Fairness is off: all tenants share one queue, first come, first served."],
  cancellation: ["out-lede", "Cancellation is off: work continues without a client."],
};

export class Policies {
  constructor(access, announcer) {
    this.access = access;
    this.announcer = announcer;
    this.now = null;
    this.switches = Object.keys(POLICIES).map((name) => new Switch(name, (on) => this.#set(name, on)));
    this.ledes = Object.fromEntries(Object.entries(WITHOUT).map(([name, [id]]) => [name, $(id).textContent]));
    $("policy-list").append(...this.switches.map((one) => one.root));
  }

  enable(on) {
    setHidden($("policies"), !on);
  }

  update(policy) {
    this.now = policy;
    for (const one of this.switches) one.update(policy[one.name]);
    const off = this.off;
    setText(
      $("policy-note"),
      off.length > 0
        ? `Without ${list(off)}: this is how a service without Weir behaves. Switch it on again afterwards.`
        : "Switches act at once, on the next request.",
    );
    setClass($("policies"), "some-off", off.length > 0);
    for (const [name, [id, words]] of Object.entries(WITHOUT))
      this.#lede($(id), policy[name] ? this.ledes[name] : words, !policy[name]);
  }

  /** Where the picture shows what a policy does, it says so when that is off. */
  #lede(element, words, without) {
    setText(element, words);
    setClass(element, "without", without);
  }

  get off() {
    return Object.keys(POLICIES).filter((name) => this.now?.[name] === false);
  }

  async #set(name, on) {
    try {
      const answer = await this.access.write("POST", "/console/policy", { [name]: on });
      if (!answer.ok) return setText($("policy-note"), await messageOf(answer));
      this.update(await answer.json());
      this.announcer.say(`${POLICIES[name].word} is ${on ? "on" : "off"}.`);
    } catch {
      setText($("policy-note"), "The router does not respond.");
    }
    return undefined;
  }
}

class Switch {
  constructor(name, onSet) {
    this.name = name;
    this.says = make("span", { class: "says", id: `policy-${name}-says` });
    this.state = make("span", { class: "on-off", "aria-hidden": "true" });
    this.button = make(
      "button",
      {
        type: "button",
        role: "switch",
        class: "switch",
        id: `policy-${name}`,
        "aria-describedby": this.says.id,
        onclick: () => onSet(this.button.getAttribute("aria-checked") !== "true"),
      },
      make("span", { class: "knob", "aria-hidden": "true" }),
      make("span", { class: "switch-name" }, POLICIES[name].word),
      this.state,
    );
    this.root = make("li", {}, this.button, this.says);
  }

  update(on) {
    setAttribute(this.button, "aria-checked", String(on));
    setText(this.state, on ? "on" : "off");
    setText(this.says, on ? POLICIES[this.name].on : POLICIES[this.name].off);
  }
}
