/**
 * Changing the page cheaply. A frame comes five times a second and most of it is as it was: so every writer here looks
 * first and touches the document only where something differs. Nothing is ever built from a string of HTML.
 */

export const $ = (id) => document.getElementById(id);

/** An element with attributes, properties that begin with a dot, listeners that begin with "on", and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export function setText(element, text) {
  const node = element.firstChild;
  if (node === null) element.textContent = text;
  else if (node.nodeValue !== text) {
    if (node === element.lastChild && node.nodeType === Node.TEXT_NODE) node.nodeValue = text;
    else if (element.textContent !== text) element.textContent = text;
  }
}

/** null removes it. */
export function setAttribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

export function setClass(element, name, on) {
  if (element.classList.contains(name) !== on) element.classList.toggle(name, on);
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/** A length or a share for the style sheet to use, such as --share. */
export function setShare(element, name, share) {
  const value = String(Math.round(Math.min(Math.max(share, 0), 1) * 1000) / 1000);
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/**
 * The children of `parent`, one for each of `items`, kept by key: made once, updated while they last, removed after.
 * `make` returns an object with a `root` element and an `update(item)`.
 */
export class Keyed {
  constructor(parent, keyOf, makeOne) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.makeOne = makeOne;
    this.kept = new Map();
  }

  update(items) {
    const seen = new Set();
    let before = this.parent.firstElementChild;
    for (const item of items) {
      const key = this.keyOf(item);
      seen.add(key);
      let one = this.kept.get(key);
      if (one === undefined) {
        one = this.makeOne(item);
        this.kept.set(key, one);
      }
      if (one.root === before) before = before.nextElementSibling;
      else this.parent.insertBefore(one.root, before);
      one.update(item);
    }
    for (const [key, one] of this.kept) {
      if (!seen.has(key)) {
        one.root.remove();
        this.kept.delete(key);
      }
    }
  }
}
