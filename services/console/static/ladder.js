/** The degradation level as a ladder: one rung for each, where each class stands, and what that leaves of an answer. */

import { $, make, setAttribute, setClass, setText } from "./dom.js";
import { LADDER, rungSays } from "./words.js";

export class Ladder {
  constructor() {
    this.rungs = LADDER.map((rung, level) => {
      const classes = make("span", { class: "classes" });
      const root = make(
        "li",
        { class: "rung" },
        make("span", { class: "level" }, String(level)),
        make("span", { class: "rung-name" }, rung.name),
        make("span", { class: "cuts", "aria-hidden": "true" }, bar("passages", rung.depth), bar("length", rung.answer)),
        classes,
      );
      $("rungs").append(root);
      return { root, classes };
    });
  }

  update(frame) {
    this.rungs.forEach((rung, level) => {
      const here = frame.classes.filter((one) => one.level === level);
      setClass(rung.root, "here", level === frame.level);
      setAttribute(rung.root, "aria-current", level === frame.level ? "step" : null);
      setText(rung.classes, here.map((one) => (one.held ? `${one.name} (set by the operator)` : one.name)).join(", "));
    });
    setText($("ladder-says"), rungSays(frame.level));
  }
}

function bar(name, share) {
  const root = make(
    "span",
    { class: "cut" },
    make("span", { class: "cut-name" }, `${Math.round(share * 100)} % ${name}`),
  );
  root.style.setProperty("--share", String(share));
  return root;
}
