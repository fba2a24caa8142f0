// Maps of layers × heads on a canvas.

/** What the cells of a map can show. Values on both sides of `middle` have two colours. */
const COLOURINGS = [
  { name: "type", label: "head type" },
  { name: "share", label: "visual share", middle: 0.5, range: [0, 1] },
  { name: "total", label: "information" },
  { name: "visual", label: "I_vis", middle: 0 },
  { name: "language", label: "I_lang", middle: 0 },
  { name: "synergy", label: "I_syn", middle: 0 },
  { name: "contribution", label: "contribution" },
  { name: "beta", label: "β (visual factor)", middle: 1 },
  { name: "gamma", label: "γ (language factor)", middle: 1 },
];

/** The colour of a CSS variable as [red, green, blue], for the current theme. @param {string} name */
function colour(name) {
  const probe = h("span", { hidden: true, class: "probe" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g) ?? ["0", "0", "0"];
  probe.remove();
  return found.slice(0, 3).map(Number);
}

/** @param {number[]} from @param {number[]} to @param {number} part */
function mixed(from, to, part) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * part));
}

/** Black or white, whichever is easier to read. @param {number[]} on */
function inkOn(on) {
  const [r, g, b] = on.map((value) => ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

/** The colours of a theme, looked up for each drawing. */
function palette() {
  return {
    types: new Map(TYPES.map((type) => [type.code, colour(`--type-${type.code}`)])),
    surface: colour("--surface"), ink: colour("--text"), faint: colour("--faint"),
    low: colour("--low"), high: colour("--high"), deep: colour("--deep"),
  };
}

/**
 * The range of a colouring over all answers, so that their maps can be compared.
 * @param {typeof COLOURINGS[number]} colouring @param {Heads[]} all @returns {[number, number]}
 */
function rangeIn(colouring, all) {
  if (colouring.range) return [colouring.range[0], colouring.range[1]];
  let [low, high] = [Infinity, -Infinity];
  for (const heads of all) {
    const scores = /** @type {Record<string, Scores | null>} */ (heads.scores)[colouring.name];
    if (scores) {
      const [from, to] = scores.range;
      [low, high] = [Math.min(low, from), Math.max(high, to)];
    }
  }
  if (colouring.name === "synergy") {
    for (const heads of all) {
      const [, total] = heads.scores.total?.range ?? [0, 1];
      [low, high] = [Math.min(low, -total), Math.max(high, total)];
    }
  }
  if (low > high) return [0, 1];
  if (colouring.middle !== undefined) {
    const reach = Math.max(Math.abs(low - colouring.middle), Math.abs(high - colouring.middle)) || 1;
    return [colouring.middle - reach, colouring.middle + reach];
  }
  return [Math.min(low, 0), high];
}

/** The map of the heads of one answer at one step. */
class HeadMap {
  /**
   * @param {Heads} heads @param {string} name
   * @param {(head: number) => void} choose @param {(head: number | null) => void} look
   */
  constructor(heads, name, choose, look) {
    this.heads = heads;
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "map", tabindex: 0, role: "application" }));
    this.name = name;
    this.canvas.addEventListener("pointermove", (event) => look(this.headAt(event)));
    this.canvas.addEventListener("pointerleave", () => look(null));
    this.canvas.addEventListener("click", (event) => {
      const head = this.headAt(event);
      if (head !== null) choose(head);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads.heads, ArrowDown: heads.heads };
      const move = /** @type {Record<string, number>} */ (moves)[event.key];
      if (move === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      const head = this.selected + move;
      if (head >= 0 && head < heads.size) choose(head);
    });
    this.selected = 0;
    this.cell = 16;
    this.left = 26;
    this.top = 16;
    this.ratio = 1;
  }

  /** @param {number} width */
  fit(width) {
    const { heads, layers } = this.heads;
    this.cell = Math.max(5, Math.min(28, Math.floor((width - this.left - 2) / heads)));
    const [w, high] = [this.left + this.cell * heads + 2, this.top + this.cell * layers + 2];
    this.ratio = Math.max(1, Math.min(globalThis.devicePixelRatio || 1, 3));
    this.canvas.width = w * this.ratio;
    this.canvas.height = high * this.ratio;
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${high}px`;
  }

  /** @param {MouseEvent} event */
  headAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.cell);
    const row = Math.floor((event.clientY - box.top - this.top) / this.cell);
    const inside = column >= 0 && row >= 0 && column < this.heads.heads && row < this.heads.layers;
    return inside ? row * this.heads.heads + column : null;
  }

  /**
   * @param {number} step @param {typeof COLOURINGS[number]} colouring @param {[number, number]} range
   * @param {ReturnType<typeof palette>} colours @param {number} selected
   */
  draw(step, colouring, range, colours, selected) {
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    this.selected = selected;
    const { cell, heads } = this;
    const [left, top] = [this.left, this.top];
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const gap = cell > 9 ? 1 : 0;
    for (let head = 0; head < heads.size; head++) {
      const x = left + (head % heads.heads) * cell;
      const y = top + Math.floor(head / heads.heads) * cell;
      const fill = this.fillOf(step, head, colouring, range, colours);
      pen.fillStyle = `rgb(${(fill ?? colours.surface).join(",")})`;
      pen.fillRect(x, y, cell - gap, cell - gap);
      if (colouring.name === "type" && cell >= 13) {
        const type = TYPES.find((one) => one.code === heads.type(step, head));
        pen.fillStyle = inkOn(fill ?? colours.surface);
        pen.font = `${Math.round(cell * 0.55)}px system-ui, sans-serif`;
        pen.fillText(type?.letter ?? "?", x + (cell - gap) / 2, y + (cell - gap) / 2 + 0.5);
      } else if (!fill) {
        pen.strokeStyle = `rgb(${colours.faint.join(",")})`;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(x + 1, y + cell - gap - 1);
        pen.lineTo(x + cell - gap - 1, y + 1);
        pen.stroke();
      }
    }
    this.labels(pen, colours);
    pen.strokeStyle = `rgb(${colours.ink.join(",")})`;
    pen.lineWidth = 2;
    const [column, row] = [selected % heads.heads, Math.floor(selected / heads.heads)];
    pen.strokeRect(left + column * cell - 0.5, top + row * cell - 0.5, cell - gap + 1, cell - gap + 1);
    this.canvas.setAttribute("aria-label", `${this.name}: map of layers and heads. Arrow keys choose a head`);
    this.canvas.dataset.step = String(step);
    this.canvas.dataset.head = String(selected);
  }

  /**
   * @param {number} step @param {number} head @param {typeof COLOURINGS[number]} colouring
   * @param {[number, number]} range @param {ReturnType<typeof palette>} colours @returns {number[] | null}
   */
  fillOf(step, head, colouring, range, colours) {
    if (colouring.name === "type") return colours.types.get(this.heads.type(step, head)) ?? null;
    const value = this.heads.value(colouring.name, step, head);
    if (Number.isNaN(value)) return null;
    const part = Math.max(0, Math.min(1, (value - range[0]) / (range[1] - range[0] || 1)));
    if (colouring.middle === undefined) return mixed(colours.surface, colours.deep, Math.sqrt(part));
    return part < 0.5
      ? mixed(colours.surface, colours.low, 1 - 2 * part)
      : mixed(colours.surface, colours.high, 2 * part - 1);
  }

  /** @param {CanvasRenderingContext2D} pen @param {ReturnType<typeof palette>} colours */
  labels(pen, colours) {
    pen.fillStyle = `rgb(${colours.faint.join(",")})`;
    pen.font = "11px system-ui, sans-serif";
    const every = (/** @type {number} */ count) => (this.cell >= 18 || count <= 8 ? 1 : this.cell >= 10 ? 4 : 8);
    const [left, top] = [this.left, this.top];
    pen.textAlign = "right";
    for (let row = 0; row < this.heads.layers; row += every(this.heads.layers)) {
      pen.fillText(String(row), left - 5, top + (row + 0.5) * this.cell);
    }
    pen.textAlign = "center";
    for (let column = 0; column < this.heads.heads; column += every(this.heads.heads)) {
      pen.fillText(String(column), left + (column + 0.5) * this.cell, top - 8);
    }
  }
}
