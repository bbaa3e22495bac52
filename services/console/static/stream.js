/**
 * The event stream of the router, read with fetch: an EventSource cannot send a token. It comes back by itself, says
 * how it stands, and lets go while nobody looks: frames are built only for those who do.
 *
 *     connecting -> live <-> stale        a frame is stale when five should have come meanwhile
 *          ^          |
 *          |          v
 *          +------- lost (tries again, at most every 5 s)      locked: a token is asked for
 */

const SLOWEST_RETRY_MS = 5000;
const LEAST_STALE_MS = 2500;
const SILENT_MS = 15_000;

/** Blocks of "event:" and "data:" lines out of pieces of text. */
export class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
  }

  push(text) {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop();
    for (const block of blocks) this.#block(block);
  }

  #block(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    }
    if (data.length > 0) this.onEvent(name, data.join("\n"));
  }
}

export class Stream {
  constructor(url, access, { onHello, onFrame, onState }) {
    this.url = url;
    this.access = access;
    this.handlers = { onHello, onFrame, onState };
    this.state = "connecting";
    this.failures = 0;
    this.last_ms = 0;
    this.frame_ms = 200;
    this.aborter = null;
    this.retry = 0;
    this.watch = setInterval(() => this.#look(), 500);
  }

  start() {
    clearTimeout(this.retry);
    this.stop();
    const aborter = (this.aborter = new AbortController());
    this.#set("connecting", "");
    this.#read(aborter).catch((fault) => aborter === this.aborter && this.#lost(fault));
  }

  /** Let go, without a word: `start` takes it up again. */
  stop() {
    clearTimeout(this.retry);
    this.aborter?.abort();
    this.aborter = null;
  }

  async #read(aborter) {
    this.last_ms = performance.now();
    const answer = await fetch(this.url, { headers: this.access.headers(), signal: aborter.signal, cache: "no-store" });
    if (answer.status === 401) return this.#lock();
    if (!answer.ok) throw new Error(await messageOf(answer));
    const parser = new EventParser((name, data) => this.#event(name, data));
    const decoder = new TextDecoder();
    const reader = answer.body.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (aborter !== this.aborter) return undefined;
      if (done) throw new Error("the router ended the stream");
      parser.push(decoder.decode(value, { stream: true }));
    }
  }

  #event(name, data) {
    this.last_ms = performance.now();
    if (name === "hello") {
      const hello = JSON.parse(data);
      this.frame_ms = hello.frame_ms ?? this.frame_ms;
      this.handlers.onHello(hello);
    } else if (name === "frame") {
      this.failures = 0;
      this.#set("live", "");
      this.handlers.onFrame(JSON.parse(data));
    }
  }

  #lock() {
    this.aborter = null; // nothing to read until a token is given
    this.#set("locked", "");
  }

  #lost(fault) {
    this.aborter?.abort();
    this.aborter = null;
    const wait_ms = Math.min(SLOWEST_RETRY_MS, 500 * 2 ** this.failures++);
    this.#set("lost", fault.name === "TypeError" ? "the router does not respond" : fault.message);
    this.retry = setTimeout(() => this.start(), wait_ms);
  }

  /** Is the newest frame old? Twice a second, whether frames come or not. */
  #look() {
    const age_ms = performance.now() - this.last_ms;
    if (this.aborter !== null && age_ms > SILENT_MS) this.#lost(new Error("nothing was received for 15 seconds"));
    else if (this.state === "live" && age_ms > Math.max(LEAST_STALE_MS, 5 * this.frame_ms)) this.#set("stale", "");
    if (this.state === "stale") this.handlers.onState("stale", `${Math.round(age_ms / 1000)} s`);
  }

  #set(state, detail) {
    if (state === this.state && state === "live") return;
    if (state === "connecting" && this.state === "lost") return; // it was said already that it tries again
    this.state = state;
    this.handlers.onState(state, detail);
  }
}

/** The sentence in a problem body, or the status where there is none. */
export async function messageOf(answer) {
  try {
    const body = await answer.json();
    return body.error?.message ?? `status ${answer.status}`;
  } catch {
    return `status ${answer.status}`;
  }
}

/** What goes with each request to the router: the token, where one was given, and the mark of a write. */
export class Access {
  #token = "";

  use(token) {
    this.#token = token;
  }

  get given() {
    return this.#token !== "";
  }

  headers(more = {}) {
    return this.#token === "" ? more : { ...more, authorization: `Bearer ${this.#token}` };
  }

  write(method, url, body) {
    const headers = this.headers({ "x-weir-console": "1", "content-type": "application/json" });
    return fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  }

  get(url) {
    return fetch(url, { headers: this.headers(), cache: "no-store" });
  }
}
