/**
 * The page, put together. Frames come from the stream; the newest one is painted when the browser next paints, however
 * many came meanwhile. Only the falling marks move between frames.
 *
 *     stream -> history -> paint: reading, gates, lines, workers, sharing, ladder, charts, decisions
 *     bench  -> start, stop, runs            policies -> switches            life -> one request
 */

import { Announcer } from "./announcer.js";
import { Bench } from "./bench.js";
import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { $, setAttribute, setHidden, setText } from "./dom.js";
import { clock } from "./format.js";
import { Gates } from "./gates.js";
import { History } from "./history.js";
import { Ladder } from "./ladder.js";
import { Life } from "./life.js";
import { Lines } from "./lines.js";
import { Policies } from "./policies.js";
import { Reading } from "./reading.js";
import { Sharing } from "./sharing.js";
import { Access, Stream } from "./stream.js";
import { Colours, Tenants } from "./tenants.js";
import { Theme } from "./theme.js";
import { Workers } from "./workers.js";

const HIDDEN_MS = 10_000; // a page that nobody sees lets go of its stream after so long

class Console {
  constructor() {
    this.access = new Access();
    this.history = new History();
    this.tenants = new Tenants();
    this.theme = new Theme(() => this.#repaint());
    this.colours = new Colours();
    this.announcer = new Announcer();
    this.life = new Life(this.access, this.tenants);
    const onPick = (id) => this.life.open(id);
    this.gates = new Gates(this.tenants, this.colours, onPick);
    this.reading = new Reading(this.announcer);
    this.parts = [new Lines(this.tenants), new Workers(this.tenants, onPick), new Sharing(this.announcer), new Ladder()];
    this.charts = new Charts(this.tenants, this.colours);
    this.decisions = new Decisions(this.tenants, onPick);
    this.bench = new Bench(this.access, this.announcer, this.tenants);
    this.policies = new Policies(this.access, this.announcer);
    this.stream = new Stream("/console/events", this.access, {
      onHello: (hello) => this.#hello(hello),
      onFrame: (frame) => this.#frame(frame),
      onState: (state, detail) => this.#link(state, detail),
    });
    this.frame = null;
    this.painted = null;
    this.shown = 0; // the number of the newest decision that was shown
    this.offset_ms = null;
    this.paused = false;
    this.#listen();
  }

  start() {
    this.stream.start();
    const tick = (now_ms) => {
      if (!this.paused) this.#paint(now_ms);
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  #listen() {
    $("pause").addEventListener("click", () => this.#pause(!this.paused));
    $("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.access.use($("token").value);
      $("token").value = "";
      setHidden($("token-form"), true);
      this.stream.start();
    });
    document.addEventListener("visibilitychange", () => this.#visible(!document.hidden));
  }

  #visible(visible) {
    clearTimeout(this.hiding);
    if (!visible) this.hiding = setTimeout(() => this.stream.stop(), HIDDEN_MS);
    else if (this.stream.aborter === null && this.stream.state !== "locked") this.stream.start();
    if (visible) this.bench.poll();
  }

  #pause(on) {
    this.paused = on;
    setAttribute($("pause"), "aria-pressed", String(on));
    setText($("pause"), on ? "Resume" : "Pause");
    this.announcer.say(on ? "The view is paused." : "The view is live.");
    this.#link(this.stream.state, "");
  }

  // ---- what comes in

  #hello(hello) {
    this.bench.enable(hello.storm);
    this.policies.enable(hello.policy);
    setHidden($("bench"), !hello.storm && !hello.policy);
    setHidden($("jump"), !hello.storm);
  }

  #frame(frame) {
    if (this.frame !== null && frame.decided < this.shown) this.shown = 0; // another router: its numbers begin anew
    this.history.add(frame);
    this.frame = frame;
    this.#clock(frame);
    for (const id of frame.tenants.map((tenant) => tenant.id).sort()) this.tenants.get(id); // letters in order
    const news = frame.decisions.filter((decision) => decision.n > this.shown);
    if (news.length > 0) this.shown = news.at(-1).n;
    if (this.paused) return;
    this.decisions.add(news);
    this.gates.drop(news, this.offset_ms);
  }

  /** From the router's clock to performance.now(): the least delay seen, forgotten slowly in case a clock drifts. */
  #clock(frame) {
    const offset_ms = performance.now() - frame.at_ms;
    if (this.offset_ms === null || offset_ms < this.offset_ms || offset_ms > this.offset_ms + 60_000)
      this.offset_ms = offset_ms;
    else this.offset_ms += Math.min(1, (offset_ms - this.offset_ms) * 0.02);
  }

  #link(state, detail) {
    const at = this.frame === null ? "" : clock(this.frame.at_ms);
    const words = {
      connecting: "Connecting",
      live: this.paused ? `Paused at ${at}` : "Live",
      stale: `No update for ${detail}: this view is of ${at}`,
      lost: `Lost: ${detail}. Reconnecting${at ? `; this view is of ${at}` : ""}`,
      locked: this.access.given ? "That token is rejected" : "A token is required",
    }[state];
    setAttribute($("link"), "data-state", this.paused && state === "live" ? "paused" : state);
    setText($("link-text"), words);
    setAttribute(document.body, "data-stale", state === "stale" || state === "lost" ? "" : null);
    setHidden($("token-form"), state !== "locked");
    if (state === "locked") $("token").focus();
    if (state !== this.linked && (state === "lost" || (state === "live" && this.linked === "lost"))) {
      this.announcer.say(state === "lost" ? "The connection is lost; reconnecting." : "The connection is restored.");
    }
    this.linked = state;
  }

  // ---- what is shown

  #paint(now_ms) {
    const { frame } = this;
    if (frame !== null && frame !== this.painted) {
      this.painted = frame;
      this.reading.update(frame, this.history, now_ms);
      this.gates.update(this.history.newest);
      for (const part of this.parts) part.update(frame);
      this.charts.update(this.history, frame);
      this.decisions.update(now_ms);
      this.policies.update(frame.policy);
    }
    this.gates.draw(now_ms);
  }

  #repaint() {
    this.colours.read();
    this.charts.repaint();
    this.gates.draw(performance.now());
  }
}

new Console().start();
