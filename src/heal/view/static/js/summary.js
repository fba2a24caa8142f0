// A table of figures above other views.

/** @typedef {{kind: "summary", title: string, notes: string[], headings: string[], rows: string[][], below: string[]}} SummaryData */

/** A summary: one line per row, the first cell is its name. */
class SummaryView {
  /** @param {SummaryData} data */
  constructor(data) {
    const heads = data.headings.map((name) => h("th", { scope: "col" }, name));
    const lines = data.rows.map((row) =>
      h("tr", {}, ...row.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, cell))));
    this.element = h("section", { class: "summary-view" },
      h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": data.title },
        h("table", { class: "results" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...lines))),
      ...data.below.map((line) => h("p", { class: "small" }, line)));
  }

  /** The table needs no drawing. */
  redraw() {}
}
