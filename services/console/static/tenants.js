/**
 * A tenant is a letter and a hue, always the same while the page is open: never a colour alone. The hues are those of
 * Okabe and Ito, which people with any kind of colour vision can tell apart. The style sheet has them (.t0 to .t7),
 * each with an ink that reads on it and a darker stroke for lines on paper.
 */

const HUES = 7;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const MOST = 200; // kept apart; whoever comes later shares one sign

export class Tenants {
  constructor() {
    this.known = new Map();
    this.unknown = { id: "", letter: "·", hue: "t7", index: MOST };
  }

  get(id) {
    const found = this.known.get(id);
    if (found !== undefined) return found;
    if (id === "" || id === "other" || this.known.size >= MOST) return this.unknown;
    const index = this.known.size;
    const round = Math.floor(index / LETTERS.length);
    const tenant = { id, index, letter: LETTERS[index % LETTERS.length] + (round || ""), hue: `t${index % HUES}` };
    this.known.set(id, tenant);
    return tenant;
  }
}

/** The colours of the style sheet as canvases need them; read again when the theme changes. */
export class Colours {
  constructor() {
    this.read();
  }

  read() {
    const probe = document.body.appendChild(document.createElement("i"));
    const of = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    this.ink = of("--ink");
    this.quiet = of("--ink-3");
    this.line = of("--line");
    this.water = of("--water");
    this.alarm = of("--alarm");
    this.surface = of("--surface");
    this.font = `12px ${getComputedStyle(probe).fontFamily}`;
    this.strokes = Object.fromEntries([...Array(HUES + 1).keys()].map((n) => [`t${n}`, of(`--t${n}-stroke`)]));
    probe.remove();
  }

  stroke(hue) {
    return this.strokes[hue];
  }
}
