/** What a screen reader says by itself: only what matters, and at most one sentence in a few seconds. */

import { $ } from "./dom.js";

const EVERY_MS = 4000;
const MOST = 3; // sentences kept while it is too early: the newest

export class Announcer {
  constructor() {
    this.pending = [];
    this.said_ms = -EVERY_MS;
    this.timer = 0;
  }

  say(sentence) {
    if (this.pending.at(-1) === sentence) return;
    this.pending = [...this.pending, sentence].slice(-MOST);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#speak(), Math.max(0, this.said_ms + EVERY_MS - performance.now()));
  }

  #speak() {
    this.said_ms = performance.now();
    $("announcer").textContent = this.pending.join(" ");
    this.pending = [];
  }
}
