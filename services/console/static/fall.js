/**
 * Marks that fall as things are decided: time goes down, a column is a kind of decision, a colour a tenant. It is a
 * strip chart that stands upright, so the density of marks is a rate one can see. One mark is one request.
 *
 * Who asked for less motion gets the same picture, drawn anew once a second instead of sliding.
 */

const SPAN_MS = 6000;
const DELAY_MS = 260; // frames come every 200 ms: by then the marks of one are all there
const RULES_S = [2, 4]; // a hairline for each
const BANDS = 6; // of age, each paler than the one above
const MOST = 1500;
const MARK_PX = 3.4;
const REACH_PX = 14; // a finger is wider than a mark

/** Somewhere in -1..1, the same for the same request. */
function scatter(id) {
  let hash = 2166136261;
  for (let at = 0; at < id.length; at++) hash = Math.imul(hash ^ id.charCodeAt(at), 16777619);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b); // neighbours in number are no neighbours in place
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash >>> 0) / 0xffffffff) * 2 - 1;
}

const SHAPES = {
  disc(pen, x, y, r) {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, 2 * Math.PI);
  },
  half(pen, x, y, r) {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, Math.PI);
  },
  triangle(pen, x, y, r) {
    pen.moveTo(x - r, y - r * 0.8);
    pen.lineTo(x + r, y - r * 0.8);
    pen.lineTo(x, y + r);
  },
  cross(pen, x, y, r) {
    const w = r * 0.36;
    for (const turn of [Math.PI / 4, -Math.PI / 4]) {
      const [c, s] = [Math.cos(turn), Math.sin(turn)];
      const at = (a, b) => [x + a * c - b * s, y + a * s + b * c];
      pen.moveTo(...at(-r * 1.2, -w));
      pen.lineTo(...at(r * 1.2, -w));
      pen.lineTo(...at(r * 1.2, w));
      pen.lineTo(...at(-r * 1.2, w));
      pen.closePath();
    }
  },
  diamond(pen, x, y, r) {
    pen.moveTo(x, y - r * 1.2);
    pen.lineTo(x + r * 1.1, y);
    pen.lineTo(x, y + r * 1.2);
    pen.lineTo(x - r * 1.1, y);
  },
};

export class Fall {
  /** columns: [{name, shape}], from left to right. */
  constructor(canvas, columns, colours, onPick) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.columns = columns;
    this.colours = colours;
    this.marks = [];
    this.width = this.height = 0;
    new ResizeObserver(() => this.#fit()).observe(canvas);
    canvas.addEventListener("click", (event) => {
      const mark = this.#nearest(event.offsetX, event.offsetY);
      if (mark !== null) onPick(mark.id);
    });
    canvas.addEventListener("pointermove", (event) => {
      canvas.style.cursor = this.#nearest(event.offsetX, event.offsetY) === null ? "default" : "pointer";
    });
  }

  add(column, id, hue, at_ms) {
    const index = this.columns.findIndex((one) => one.name === column);
    this.marks.push({ index, id, hue, at_ms, aside: scatter(id) });
    if (this.marks.length > MOST) this.marks.splice(0, this.marks.length - MOST);
  }

  get busy() {
    return this.marks.length > 0;
  }

  draw(now_ms) {
    const { pen, width, height } = this;
    const cut = this.marks.findIndex((mark) => now_ms - mark.at_ms < SPAN_MS + DELAY_MS);
    this.marks.splice(0, cut < 0 ? this.marks.length : cut);
    this.now_ms = now_ms;
    pen.clearRect(0, 0, width, height);
    this.#rules();
    this.#marks();
    this.#times();
  }

  /** One path for all marks of a hue that are about as old: a hundred strokes of the pen, not a thousand. */
  #marks() {
    const { pen, height } = this;
    const paths = new Map();
    for (const mark of this.marks) {
      const [x, y] = this.#place(mark);
      if (y < -MARK_PX) continue;
      const band = Math.min(BANDS - 1, Math.max(0, Math.floor((y / height) * BANDS)));
      const key = `${mark.hue} ${band}`;
      const path = paths.get(key) ?? new Path2D();
      paths.set(key, path);
      SHAPES[this.columns[mark.index].shape](path, x, y, MARK_PX);
    }
    for (const [key, path] of paths) {
      const [hue, band] = key.split(" ");
      pen.globalAlpha = Math.min(1, 1.2 - band / BANDS);
      pen.fillStyle = this.colours.stroke(hue);
      pen.fill(path);
    }
    pen.globalAlpha = 1;
  }

  /** How long ago, at the right edge, with a halo so that it reads on marks too. */
  #times() {
    const { pen, width, height } = this;
    pen.font = this.colours.font;
    pen.textBaseline = "bottom";
    pen.textAlign = "right";
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeStyle = this.colours.surface;
    pen.fillStyle = this.colours.quiet;
    for (const ago_s of RULES_S) {
      const y = (height * ago_s * 1000) / SPAN_MS - 2;
      pen.strokeText(`${ago_s} s ago`, width - 1, y);
      pen.fillText(`${ago_s} s ago`, width - 1, y);
    }
  }

  /** Hairlines between columns, and across where so many seconds are over. */
  #rules() {
    const { pen, width, height } = this;
    pen.strokeStyle = this.colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let n = 1; n < this.columns.length; n++) {
      const x = Math.round((width * n) / this.columns.length) + 0.5;
      pen.moveTo(x, 0);
      pen.lineTo(x, height);
    }
    pen.stroke();
    pen.setLineDash([2, 4]);
    pen.beginPath();
    for (const ago_s of RULES_S) {
      const y = Math.round((height * ago_s * 1000) / SPAN_MS) + 0.5;
      pen.moveTo(0, y);
      pen.lineTo(width, y);
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  #place(mark) {
    const column = this.width / this.columns.length;
    const room = column / 2 - 8;
    const y = ((this.now_ms - DELAY_MS - mark.at_ms) / SPAN_MS) * this.height;
    return [column * (mark.index + 0.5) + mark.aside * room, y];
  }

  #nearest(x, y) {
    let best = null;
    let reach = REACH_PX ** 2;
    for (const mark of this.marks) {
      const [mx, my] = this.#place(mark);
      const far = (mx - x) ** 2 + (my - y) ** 2;
      if (far < reach) [best, reach] = [mark, far];
    }
    return best;
  }

  #fit() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    [this.width, this.height] = [clientWidth, clientHeight];
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.now_ms ??= performance.now();
    this.draw(this.now_ms);
  }
}
