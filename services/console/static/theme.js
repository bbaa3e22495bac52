/** Light, dark, or as the system has it. Kept in this browser where it lets us. */

import { $, setText } from "./dom.js";

const KEY = "weir-console-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export class Theme {
  constructor(onChange) {
    this.onChange = onChange;
    this.name = kept() ?? "system";
    this.#apply();
    $("theme").addEventListener("click", () => {
      this.name = NEXT[this.name];
      keep(this.name);
      this.#apply();
      this.onChange();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.onChange());
  }

  #apply() {
    const root = document.documentElement;
    if (this.name === "system") delete root.dataset.theme;
    else root.dataset.theme = this.name;
    setText($("theme-name"), this.name);
  }
}

function kept() {
  try {
    const name = localStorage.getItem(KEY);
    return name in NEXT ? name : null;
  } catch {
    return null; // a browser that keeps nothing still shows the page
  }
}

function keep(name) {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // as above
  }
}
