/** A request's life drawn to scale. The list beside it says the same in words. */

import { makeSvg } from "./dom.js";
import { span } from "./format.js";

const HEIGHT = 92;

/** From arrival to the deadline (or the end, where that came later), with waiting and work as bars. */
export function drawn(life, width) {
  const last = life.timeline.at(-1)?.at_ms ?? 0;
  const until = Math.max(life.deadline_ms ?? 0, last, 1) * 1.02;
  const at = (time_ms) => Math.round((time_ms / until) * width * 10) / 10;
  const started = life.timeline.findLast((event) => event.what === "started")?.at_ms;
  const lives = life.state !== "ended";
  const ends = lives ? Math.max(life.deadline_ms ?? 0, last) : last;
  const says = `From arrival to ${span(last)}, the deadline at ${span(life.deadline_ms)}. The list below shows the same.`;
  const svg = makeSvg("svg", { class: "timeline", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": says });
  svg.append(makeSvg("path", { class: "axis", d: `M0 44.5H${width}` }));
  const open = lives ? " open" : "";
  if (started === undefined) svg.append(...bar(`wait${open}`, "waits", at(0), at(ends)));
  else svg.append(...bar("wait", "waits", at(0), at(started)), ...bar(`work${open}`, "runs", at(started), at(ends)));
  svg.append(...ticks(life.timeline, at));
  const deadline = at(life.deadline_ms ?? 0);
  const name = label(
    Math.min(Math.max(deadline, 96), width - 4),
    70,
    `deadline ${span(life.deadline_ms)}`,
    "deadline-name",
    "end",
  );
  svg.append(makeSvg("path", { class: "deadline", d: `M${deadline} 10V57` }), name, ...predicted(life, at, width));
  return svg;
}

function bar(name, words, from, to) {
  const rect = makeSvg("rect", { class: name, x: from, y: 24, width: Math.max(1, to - from), height: 20, rx: 2 });
  return to - from > 60 ? [rect, label((from + to) / 2, 39, words, `bar-name on-${name}`)] : [rect];
}

/** What the door expected, below what came of it. */
function predicted(life, at, most) {
  const wait_ms = life.numbers.predicted_wait_ms;
  if (wait_ms === null || wait_ms === undefined) return [];
  const width = Math.min(most, Math.max(2, at(wait_ms)));
  return [
    makeSvg("rect", { class: "predicted", x: 0, y: 50, width, height: 6, rx: 2 }),
    label(0, 88, `▬ predicted wait, ${span(wait_ms)}`, "predicted-name", "start"),
  ];
}

/** One for each event, with its number where there is room for it. */
function ticks(timeline, at) {
  let free = -Infinity;
  return timeline.flatMap((event, n) => {
    const x = at(event.at_ms);
    const tick = makeSvg("path", { class: "tick", d: `M${x} 20v28` });
    if (x < free) return [tick];
    free = x + 14;
    return [tick, label(Math.max(x, 5), 14, String(n + 1), "number")];
  });
}

function label(x, y, words, name, anchor = "middle") {
  const text = makeSvg("text", { class: name, x, y, "text-anchor": anchor });
  text.textContent = words;
  return text;
}
