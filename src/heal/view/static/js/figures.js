// Elements and figures in SVG, without a library.

/**
 * An element with its properties and children. Text is always text, never markup.
 * @param {string} tag @param {Record<string, unknown>} [properties] @param {...(Node | string | null)} children
 * @returns {HTMLElement}
 */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, properties);
  for (const child of children) if (child !== null) element.append(child);
  return element;
}

/**
 * The same for SVG.
 * @param {string} tag @param {Record<string, unknown>} [attributes] @param {...(Node | string)} children
 * @returns {SVGElement}
 */
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(element, attributes);
  element.append(...children);
  return element;
}

/** A symbol with its index: I_vis. @param {string} name */
function symbol(name) {
  const [letter, index] = name.split("_");
  return h("span", { class: "symbol" }, letter, index ? h("sub", {}, index) : null);
}

/** @param {Element} element @param {Record<string, unknown>} properties */
function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
}

/** Round numbers that divide a range. @param {number} low @param {number} high @param {number} count */
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found.map((at) => Math.round(at / step) * step);
}

/** @param {number} value @param {number[]} others */
function tickText(value, others) {
  const gap = others.length > 1 ? Math.abs(others[1] - others[0]) : Math.abs(value) || 1;
  const digits = gap >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(gap) - 1e-9));
  return (value + 0).toFixed(digits).replace("-", "−");
}

/**
 * The smallest range that holds all known values, with some space.
 * @param {Iterable<number | null>} values @param {number[]} [also] @returns {[number, number]}
 */
function rangeOf(values, also = []) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of [...values, ...also]) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const space = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - space, high + space];
}

/**
 * @typedef {{name: string, className: string, values: (number | null)[]}} Line
 * @typedef {{step: number, value: number, className: string, sign: string, title: string}} Sign
 * @typedef {{title: string, lines: Line[], height: number, width: number, steps: number, signs?: Sign[],
 *   level?: {value: number, name: string} | null, refreshed?: {className: string, steps: number[]}[],
 *   range?: [number, number], ticks?: number, axis?: string}} LinePlot
 */

/** Lines over the steps of an answer, with a cursor. */
class StepPlot {
  /** @param {LinePlot} given @param {(step: number) => void} choose called with the step under the pointer */
  constructor(given, choose) {
    this.given = given;
    this.width = given.width;
    this.left = 44;
    this.right = 0;
    this.top = 8;
    this.bottom = 0;
    this.element = svg("svg", { class: "plot", role: "img", "aria-label": given.title });
    this.element.addEventListener("pointerdown", (event) => choose(this.stepAt(event)));
    this.element.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) choose(this.stepAt(event));
    });
    this.cursors = svg("g", { class: "cursors" });
    this.draw(given.width);
  }

  /** @param {PointerEvent} event */
  stepAt(event) {
    const box = this.element.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.width;
    return Math.round(((at - this.left) / (this.right - this.left)) * (this.given.steps - 1));
  }

  /** @param {number} step */
  x(step) {
    return this.left + ((this.right - this.left) * step) / Math.max(this.given.steps - 1, 1);
  }

  /** @param {number} width */
  draw(width) {
    const { given } = this;
    this.width = Math.max(width, 160);
    this.right = this.width - 10;
    this.bottom = given.height - (given.axis ? 32 : 18);
    const values = given.lines.flatMap((line) => line.values);
    const [low, high] = given.range ?? rangeOf(values, given.level ? [given.level.value] : []);
    const y = (/** @type {number} */ value) =>
      this.bottom - ((value - low) / (high - low || 1)) * (this.bottom - this.top);
    this.element.setAttribute("viewBox", `0 0 ${this.width} ${given.height}`);
    this.element.setAttribute("height", String(given.height));
    this.element.replaceChildren(svg("title", {}, given.title));
    this.axes(y, ticks(low, high, given.ticks ?? 3));
    if (given.level && given.level.value >= low && given.level.value <= high) {
      const at = y(given.level.value);
      this.element.append(svg("line", { class: "level", x1: this.left, x2: this.right, y1: at, y2: at }));
      this.element.append(svg("text", { class: "note", x: this.right, y: at - 4, "text-anchor": "end" }, given.level.name));
    }
    for (const line of given.lines) this.element.append(this.path(line, y));
    for (const [row, group] of (given.refreshed ?? []).entries()) {
      const at = this.bottom + 4 + row * 5;
      const marks = group.steps.map((step) => `M${this.x(step).toFixed(1)} ${at}v4`).join("");
      this.element.append(svg("path", { class: `refresh ${group.className}`, d: marks }));
    }
    for (const sign of given.signs ?? []) {
      const place = { class: `sign ${sign.className}`, x: this.x(sign.step), y: y(sign.value) + 4, "text-anchor": "middle" };
      this.element.append(svg("text", place, svg("title", {}, sign.title), sign.sign));
    }
    this.element.append(this.cursors);
  }

  /** @param {(value: number) => number} y @param {number[]} at */
  axes(y, at) {
    for (const value of at) {
      const place = y(value);
      this.element.append(svg("line", { class: "grid", x1: this.left, x2: this.right, y1: place, y2: place }));
      const text = { class: "tick", x: this.left - 6, y: place + 4, "text-anchor": "end" };
      this.element.append(svg("text", text, tickText(value, at)));
    }
    const steps = ticks(0, Math.max(this.given.steps - 1, 1), Math.max(2, Math.floor(this.width / 120)));
    for (const step of this.given.axis ? steps.filter(Number.isInteger) : []) {
      const text = { class: "tick", x: this.x(step), y: this.given.height - 4, "text-anchor": "middle" };
      this.element.append(svg("text", text, String(step)));
    }
  }

  /** A line, with dots where a value stands alone. @param {Line} line @param {(value: number) => number} y */
  path(line, y) {
    let [path, dots] = ["", ""];
    let open = false;
    line.values.forEach((value, step) => {
      if (value === null || !Number.isFinite(value)) open = false;
      else {
        const place = `${this.x(step).toFixed(1)} ${y(value).toFixed(1)}`;
        if (!open && !Number.isFinite(line.values[step + 1] ?? NaN)) dots += `M${place}h0.1`;
        path += `${open ? "L" : "M"}${place}`;
        open = true;
      }
    });
    return svg("g", {}, svg("path", { class: `line ${line.className}`, d: path }), svg("path", { class: `line dots ${line.className}`, d: dots }));
  }

  /** @param {{step: number, className: string}[]} at */
  move(at) {
    this.cursors.replaceChildren(
      ...at.map(({ step, className }) =>
        svg("line", { class: `cursor ${className}`, x1: this.x(step), x2: this.x(step), y1: this.top, y2: this.bottom }),
      ),
    );
  }
}

/**
 * How many heads have which type along the answer, as stacked bars.
 * @param {Heads} heads @param {number} width @param {number} height @param {number} steps steps of the longest answer
 */
function typeStrip(heads, width, height, steps) {
  const [left, right] = [44, Math.max(width, 160) - 10];
  const x = (/** @type {number} */ step) => left + ((right - left) * step) / Math.max(steps - 1, 1);
  const strip = svg("svg", {
    class: "plot strip", viewBox: `0 0 ${Math.max(width, 160)} ${height}`, height, role: "img",
    "aria-label": "Share of heads of each type along the answer",
  });
  heads.firsts.forEach((first, frame) => {
    const stop = frame + 1 < heads.firsts.length ? heads.firsts[frame + 1] : heads.steps - 1;
    const counts = heads.counts(first);
    let at = 0;
    for (const type of TYPES) {
      const size = ((counts.get(type.code) ?? 0) / heads.size) * height;
      if (!size) continue;
      const place = { x: x(first), width: Math.max(x(stop) - x(first), 0.5), y: at, height: size };
      strip.append(svg("rect", { class: `type-${type.code}`, ...place }));
      at += size;
    }
  });
  return strip;
}
