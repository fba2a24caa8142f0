// Where the chosen head looks, over the picture.

/** @typedef {{grid: [number, number], box: [number, number, number, number], steps: number[], levels: string, unit: string}} PatchData */

const DARKEST = 0.78;

/** The weights of one answer. */
class Patches {
  /** @param {PatchData} data @param {number} size heads of all layers @param {number} steps */
  constructor(data, size, steps) {
    this.data = data;
    this.size = size;
    this.count = data.grid[0] * data.grid[1];
    this.levels = bytes(data.levels);
    this.unit = new Float32Array(bytes(data.unit).buffer);
    this.frames = framesOf(data.steps, steps);
  }

  /** The levels of a head, from 0 to 255. @param {number} step @param {number} head */
  at(step, head) {
    const first = (this.frames[step] * this.size + head) * this.count;
    return this.levels.subarray(first, first + this.count);
  }

  /** The weight of one level. @param {number} step @param {number} head */
  unitAt(step, head) {
    return this.unit[this.frames[step] * this.size + head];
  }
}

/** Darkens the picture where the chosen head does not look. */
class PatchOverlay {
  /** @param {Answer[]} answers @param {HTMLElement} figure the first picture */
  constructor(answers, figure) {
    this.answers = answers;
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "patches", "aria-hidden": "true" }));
    this.box = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", class: "show-patches" }));
    this.line = h("p", { class: "patch-line" });
    this.canvas.hidden = this.line.hidden = true;
    this.box.addEventListener("change", () => this.draw());
    /** @type {{answer: Answer, head: number} | null} */
    this.shown = null;
    figure.append(this.canvas);
    this.element = h("div", { class: "patch-box" }, h("label", { class: "check no-print" }, this.box, "where the chosen head looks"), this.line);
  }

  /** A head was clicked. */
  show() {
    this.box.checked = true;
    this.draw();
  }

  /** @param {Answer} answer @param {number} head */
  update(answer, head) {
    this.shown = { answer, head };
    if (this.box.checked) this.draw();
  }

  draw() {
    const { shown: at, canvas } = this;
    const patches = at?.answer.patches;
    const on = Boolean(this.box.checked && at && patches);
    canvas.hidden = !on;
    this.line.hidden = !this.box.checked;
    this.line.textContent = this.box.checked && !patches ? "not recorded for this answer" : "";
    if (!on || !at || !patches) return;
    const { answer, head } = at;
    const [rows, columns] = patches.data.grid;
    const [left, top, right, bottom] = patches.data.box;
    Object.assign(canvas.style, { left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%` });
    [canvas.width, canvas.height] = [columns, rows];
    const levels = patches.at(answer.step, head);
    const image = new ImageData(columns, rows);
    levels.forEach((level, i) => {
      image.data[4 * i + 3] = Math.round(255 * DARKEST * (1 - level / 255));
    });
    canvas.getContext("2d")?.putImageData(image, 0, 0);
    const unit = patches.unitAt(answer.step, head);
    const sum = unit * levels.reduce((a, b) => a + b, 0);
    const step = patches.data.steps[patches.frames[answer.step]];
    const where = `layer ${Math.floor(head / answer.headsAcross)}, head ${head % answer.headsAcross}`;
    const token = answer.tokens[step].trim() || "␣";
    this.line.textContent = `${answer.name}, ${where} at “${token}”: ${(100 * sum).toFixed(1)} % of its attention is on the picture, at most ${(100 * unit * 255).toFixed(1)} % on one patch`;
  }
}
