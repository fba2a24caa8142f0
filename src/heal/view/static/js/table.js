// The results of a run: a table that sorts, and figures.

/**
 * @typedef {[number | null, number | null, number | null]} Interval value, low, high
 * @typedef {{method: string, answered: number, failed: number, missing: number, asked: number,
 *   figures: Record<string, Interval>, differences: Record<string, Interval> | null, equal_recall: Interval | null,
 *   changed: number | null, fired: number | null, reason: string | null, mean_tokens: number | null,
 *   ms_per_token: number | null, time_ratio: number | null, memory: number, note: string}} RunRow
 * @typedef {{name: string, value: (row: RunRow) => number | string | null, cell: (row: RunRow) => (Node | string)[],
 *   title?: string}} Column
 */

/** Figures that are not called by the words of their name. */
const FIGURES = { chair_s: "CHAIR_s", chair_i: "CHAIR_i", f1: "F1", len: "length" };

/** How a figure is called in a heading. @param {string} name */
function figureName(name) {
  return /** @type {Record<string, string>} */ (FIGURES)[name] ?? name.replaceAll("_", " ");
}

/** The name of a method, which may break after its separators. @param {string} name */
function breakable(name) {
  return name.split(/(?<=[:,+])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}

/** A value with its interval and its difference to the first method. @param {RunRow} row @param {string} figure */
function figureCell(row, figure) {
  const [value, low, high] = row.figures[figure] ?? [null, null, null];
  const parts = [h("b", {}, fixed(value, 1))];
  if (low !== null && high !== null && low !== high) parts.push(h("small", {}, `${fixed(low, 1)} – ${fixed(high, 1)}`));
  const difference = row.differences?.[figure];
  if (difference && difference[0] !== null) parts.push(h("small", { class: "difference" }, differenceText(difference)));
  return parts;
}

/** @param {Interval} difference */
function differenceText([value, low, high]) {
  const clear = low !== null && high !== null && (low > 0 || high < 0);
  return `${(value ?? 0) >= 0.05 ? "+" : ""}${fixed(value, 1)}${clear ? " *" : ""}`;
}

/** @param {RunRow[]} rows @param {string} headline @returns {Column[]} */
function columnsOf(rows, headline) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.figures)))].filter((name) => !name.includes("/"));
  const figures = [headline, ...names.filter((name) => name !== headline)].filter((name) => names.includes(name));
  /** @type {Column[]} */
  const found = [{ name: "method", value: (row) => row.method, cell: (row) => breakable(row.method) }];
  for (const name of figures) {
    found.push({ name: figureName(name), value: (row) => row.figures[name]?.[0] ?? null, cell: (row) => figureCell(row, name) });
  }
  if (rows.some((row) => row.equal_recall)) {
    found.push({ name: "at equal recall", title: "CHAIR_i minus that of the first method at the same object recall",
      value: (row) => row.equal_recall?.[0] ?? null,
      cell: (row) => (row.equal_recall && row.equal_recall[0] !== null ? [h("b", {}, differenceText(row.equal_recall)), h("small", {}, `${fixed(row.equal_recall[1], 1)} – ${fixed(row.equal_recall[2], 1)}`)] : ["–"]) });
  }
  const plain = (/** @type {string} */ name, /** @type {(row: RunRow) => number | null} */ value, digits = 0, title = "") =>
    found.push({ name, value, cell: (row) => [value(row) === null ? "–" : fixed(value(row), digits)], title });
  plain("time ratio", (row) => row.time_ratio, 2, "time per token after the first, as a ratio to the first method");
  plain("ms / token", (row) => row.ms_per_token, 1);
  plain("tokens", (row) => row.mean_tokens, 1, "mean length of an answer");
  plain("MiB", (row) => row.memory / 2 ** 20, 0, "peak memory");
  plain("changed", (row) => row.changed, 0, "answers that differ from the first method’s");
  plain("fired", (row) => row.fired, 0, "answers in which the method changed something");
  found.push({ name: "answered", value: (row) => row.answered, cell: (row) => [row.answered < row.asked ? `${row.answered} of ${row.asked}` : String(row.answered)] });
  return found;
}

/** @param {RunRow[]} rows @param {string} headline @param {boolean} higherIsBetter */
function resultTable(rows, headline, higherIsBetter) {
  const columns = columnsOf(rows, headline);
  const body = h("tbody");
  const lines = rows.map((row) => ({
    row,
    line: h("tr", {}, ...columns.map((column, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, ...column.cell(row)))),
  }));
  const heads = columns.map((column) => {
    const arrow = column.name === figureName(headline) ? (higherIsBetter ? "\u00a0↑" : "\u00a0↓") : "";
    const button = h("button", { type: "button", title: column.title || null }, column.name, arrow);
    const cell = h("th", { scope: "col", "aria-sort": "none" }, button);
    button.addEventListener("click", () => sort(column, cell));
    return cell;
  });
  const sort = (/** @type {Column} */ column, /** @type {HTMLElement} */ cell) => {
    const down = cell.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.setAttribute("aria-sort", "none");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sorted = [...lines].sort((a, b) => compareCells(column.value(a.row), column.value(b.row), down));
    body.replaceChildren(...sorted.map((one) => one.line));
  };
  body.append(...lines.map((one) => one.line));
  return h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": "results" },
    h("table", { class: "results" }, h("thead", {}, h("tr", {}, ...heads)), body));
}

/** Unknown values come last. @param {number | string | null} a @param {number | string | null} b @param {boolean} down */
function compareCells(a, b, down) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
  return down ? -order : order;
}

/**
 * @typedef {{name: string, x: Interval, y: Interval, first: boolean}} Point
 * @typedef {{title: string, xName: string, yName: string, downIsBetter: boolean, points: Point[]}} Scatter
 */

/** The figures of a task: its main figure against time, and for captions CHAIR_s against recall.
 * @param {RunRow[]} rows @param {string} headline @param {boolean} higherIsBetter
 * @param {Record<string, number | null>} cost time per token by method @returns {Scatter[]} */
function scattersOf(rows, headline, higherIsBetter, cost) {
  /** @param {(row: RunRow) => Interval | undefined} x @param {string} y */
  const points = (x, y) => rows.flatMap((row, i) => {
    const [across, up] = [x(row), row.figures[y]];
    return across && up && across[0] !== null && up[0] !== null ? [{ name: row.method, x: across, y: up, first: i === 0 }] : [];
  });
  /** @type {Scatter[]} */
  const found = [];
  if (rows.every((row) => row.figures.chair_s && row.figures.recall)) {
    found.push({ title: "Hallucination against recall", xName: "recall, %", yName: "CHAIR_s, % (lower is better)", downIsBetter: true,
      points: points((row) => row.figures.recall, "chair_s") });
  }
  const direction = `(${higherIsBetter ? "higher" : "lower"} is better)`;
  found.push({ title: "Quality against cost", xName: "time per token, ratio to the first method",
    yName: `${figureName(headline)} ${direction}`, downIsBetter: !higherIsBetter,
    points: points((row) => [cost[row.method] ?? null, null, null], headline) });
  return found.filter((one) => one.points.length > 1);
}

/** @param {Scatter} given @param {number} width */
function scatterPlot(given, width) {
  const height = 300;
  const [left, right, top, bottom] = [52, width - 16, 14, height - 44];
  const spread = (/** @type {"x" | "y"} */ axis) => rangeOf(given.points.flatMap((point) => point[axis]));
  const [[x0, x1], [y0, y1]] = [spread("x"), spread("y")];
  const x = (/** @type {number} */ value) => left + ((right - left) * (value - x0)) / (x1 - x0);
  const y = (/** @type {number} */ value) => {
    const part = (value - y0) / (y1 - y0);
    return given.downIsBetter ? top + (bottom - top) * part : bottom - (bottom - top) * part;
  };
  const figure = svg("svg", { class: "plot scatter", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": given.title });
  for (const [i, at] of ticks(x0, x1, 5).entries()) {
    figure.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: bottom }));
    figure.append(svg("text", { class: "tick", x: x(at), y: bottom + 15, "text-anchor": "middle" }, tickText(at, ticks(x0, x1, 5).slice(i ? i - 1 : 0))));
  }
  for (const at of ticks(y0, y1, 4)) {
    figure.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(at), y2: y(at) }));
    figure.append(svg("text", { class: "tick", x: left - 6, y: y(at) + 4, "text-anchor": "end" }, tickText(at, ticks(y0, y1, 4))));
  }
  figure.append(svg("text", { class: "axis", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }, given.xName));
  const turned = { class: "axis", transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" };
  figure.append(svg("text", turned, given.yName));
  /** @type {number[][]} */
  const taken = given.points.map((point) => [x(point.x[0] ?? 0) - 6, y(point.y[0] ?? 0) - 6, 12, 12]);
  for (const point of given.points) {
    const [px, py] = [x(point.x[0] ?? 0), y(point.y[0] ?? 0)];
    const kind = point.first ? "first" : point.name.startsWith("heal") ? "ours" : "other";
    figure.append(...whiskers(point, x, y, kind), svg("circle", { class: `point ${kind}`, cx: px, cy: py, r: 4.5 }, svg("title", {}, `${point.name}: ${shown(point.y[0], 1)} at ${shown(point.x[0])}`)));
    figure.append(labelAt(point.name, px, py, taken, [left, right, top, bottom]));
  }
  return figure;
}

/** @param {Point} point @param {(value: number) => number} x @param {(value: number) => number} y @param {string} kind */
function whiskers(point, x, y, kind) {
  const [px, py] = [x(point.x[0] ?? 0), y(point.y[0] ?? 0)];
  const found = [];
  if (point.y[1] !== null && point.y[2] !== null) found.push(svg("line", { class: `whisker ${kind}`, x1: px, x2: px, y1: y(point.y[1]), y2: y(point.y[2]) }));
  if (point.x[1] !== null && point.x[2] !== null) found.push(svg("line", { class: `whisker ${kind}`, x1: x(point.x[1]), x2: x(point.x[2]), y1: py, y2: py }));
  return found;
}

/**
 * A label beside its point, where it covers no other one if possible.
 * @param {string} name @param {number} px @param {number} py @param {number[][]} taken @param {number[]} box
 */
function labelAt(name, px, py, taken, [left, right, top, bottom]) {
  const text = name.length > 26 ? `${name.slice(0, 25)}…` : name;
  const [wide, high] = [text.length * 6.2, 14];
  const places = [[8, -5], [8, 14], [-wide - 8, -5], [-wide - 8, 14], [-wide / 2, -14], [-wide / 2, 24], [8, -19], [8, 28]];
  const boxOf = (/** @type {number[]} */ place) => [px + place[0], py + place[1] - 10, wide, high];
  const free = (/** @type {number[]} */ a) =>
    a[0] >= left - 4 && a[0] + a[2] <= right + 8 && a[1] >= top - 8 && a[1] + a[3] <= bottom + 2 &&
    taken.every((b) => a[0] + a[2] < b[0] || b[0] + b[2] < a[0] || a[1] + a[3] < b[1] || b[1] + b[3] < a[1]);
  const place = places.find((one) => free(boxOf(one))) ?? places[0];
  taken.push(boxOf(place));
  return svg("text", { class: "label", x: px + place[0], y: py + place[1] }, text);
}
