/**
 * What one of several routers has borrowed: how many share a pool, how old their exchange is, what each worker lends
 * here, and where the classes stand. The section is absent while a router is alone.
 */

import { $, Keyed, make, setClass, setHidden, setShare, setText } from "./dom.js";
import { count, NONE, plural, rate } from "./format.js";

export class Sharing {
  constructor(announcer) {
    this.announcer = announcer;
    this.last = { stale: false, down: 0 };
    this.pools = new Keyed(
      $("sharing-pools"),
      (pool) => pool.name,
      () => new Pool(),
    );
    this.leases = new Keyed(
      $("lease-rows"),
      (lease) => lease.worker,
      (lease) => new Lease(lease),
    );
    this.classes = new Keyed(
      $("turn-rows"),
      (row) => `${row.pool}\n${row.of.name}`,
      () => new Class(),
    );
  }

  update({ sharing }) {
    setHidden($("sharing"), sharing === undefined);
    if (sharing === undefined) return;
    setText($("sharing-router"), sharing.router);
    this.pools.update(sharing.pools);
    this.leases.update(sharing.leases);
    this.classes.update(sharing.pools.flatMap((pool) => rowsOf(pool, sharing.pools.length > 1)));
    setText($("sharing-more"), moreOf(sharing));
    this.#news(sharing);
  }

  #news({ pools, leases }) {
    const stale = pools.some((pool) => pool.exchange_stale);
    const down = leases.filter((lease) => !lease.up).length;
    if (stale !== this.last.stale)
      this.announcer.say(stale ? "The routers do not exchange." : "The routers exchange again.");
    if (down !== this.last.down)
      this.announcer.say(
        down === 0 ? "All workers lend slots." : `${plural(down, "worker")} ${down === 1 ? "lends" : "lend"} no slots.`,
      );
    this.last = { stale, down };
  }
}

class Pool {
  constructor() {
    this.name = make("b");
    this.routers = make("span");
    this.exchange = make("span", { class: "state" });
    this.planned = make("span");
    this.root = make("li", {}, this.name, this.routers, this.exchange, this.planned);
  }

  update(pool) {
    setClass(this.root, "down", pool.exchange_stale);
    setText(this.name, pool.name);
    setText(this.routers, plural(pool.routers, "router"));
    setText(this.exchange, exchangeOf(pool));
    setText(this.planned, `plans with ${plural(pool.planned_slots, "slot")}`);
  }
}

class Lease {
  constructor({ worker }) {
    this.state = make("td", { class: "state" });
    this.lent = make("span", { class: "lent" });
    this.inFlight = make("td", { class: "n" });
    const name = make("th", { scope: "row" }, worker);
    this.root = make("tr", {}, name, this.state, make("td", {}, this.lent), this.inFlight);
  }

  update(lease) {
    setClass(this.root, "down", !lease.up);
    setText(this.state, leaseOf(lease));
    setText(this.lent, `${count(lease.borrowed)} of ${count(lease.slots)}`);
    setShare(this.lent, "--share", lease.slots > 0 ? lease.borrowed / lease.slots : 0);
    setText(this.inFlight, count(lease.in_flight));
  }
}

class Class {
  constructor() {
    this.name = make("th", { scope: "row" });
    this.cells = Array.from({ length: 4 }, () => make("td", { class: "n" }));
    this.root = make("tr", {}, this.name, ...this.cells);
  }

  update({ name, of }) {
    setText(this.name, name);
    const light = of.light > 0 ? `${count(of.wanted)} (${count(of.light)} light)` : count(of.wanted);
    const ahead = of.lowest === null ? NONE : rate(Math.max(0, of.level - of.lowest));
    [light, count(of.level), ahead, count(of.turn)].forEach((text, at) => setText(this.cells[at], text));
  }
}

function rowsOf(pool, several) {
  return pool.classes.map((of) => ({ pool: pool.name, name: several ? `${pool.name}: ${of.name}` : of.name, of }));
}

function exchangeOf({ exchange_age_s, exchange_stale }) {
  if (exchange_age_s === null) return "✕ no answer of the store yet";
  const age = `${rate(exchange_age_s)} s`;
  return exchange_stale ? `✕ no exchange for ${age}` : `exchanged ${age} ago`;
}

function leaseOf({ up, recalled }) {
  if (!up) return "✕ down";
  return recalled ? "up, idle slots wanted back" : "up";
}

function moreOf({ other_leases, other_pools }) {
  const more = [];
  if (other_leases > 0) more.push(plural(other_leases, "more worker"));
  if (other_pools > 0) more.push(plural(other_pools, "more pool"));
  return more.length > 0 ? `and ${more.join(" and ")}` : "";
}
