// The run view: results, figures, samples with filters, failures.

/**
 * @typedef {{text: string, marks: Mention[], wrong: boolean, correct?: boolean | null, verdict?: string | null, tags: string[]}} RunText
 * @typedef {{text: number | null, error?: string, tokens?: number, finish?: string,
 *   fired?: {steps: number, changes: number, reason: string | null} | null}} RunAnswer
 * @typedef {{id: string, prompt: string, truth: string, objects: string[] | null, picture: number | null,
 *   texts: RunText[], answers: (RunAnswer | null)[], tags: string[]}} RunSample
 * @typedef {{name: string, headline: string, higher_is_better: boolean, rows: RunRow[], total: number,
 *   samples: RunSample[], pictures: string[]}} RunTask
 * @typedef {{kind: "run", title: string, notes: string[], model: string, seed: number | null,
 *   methods: Record<string, unknown>, cost: Record<string, number | null>, tasks: RunTask[], failed: number,
 *   failures: {task: string, sample: string, method: string, error: string}[]}} RunData
 */

/** A run: one task at a time. */
class RunView {
  /** @param {RunData} data */
  constructor(data) {
    this.data = data;
    this.methods = Object.keys(data.methods);
    this.task = data.tasks[0];
    this.results = h("div", { class: "run-results" });
    this.figures = h("div", { class: "run-figures" });
    /** @type {SampleBrowser | null} */
    this.browser = null;
    this.samples = h("div");
    this.tabs = h("div", { class: "tabs", role: "group", "aria-label": "tasks" }, ...data.tasks.map((task) => {
      const button = h("button", { type: "button", "aria-pressed": task === this.task }, task.name);
      button.addEventListener("click", () => this.show(task));
      return button;
    }));
    const facts = [`model ${data.model || "unknown"}`, `${this.methods.length} methods`, `seed ${data.seed}`, `${data.failed} failed`];
    this.element = h("section", { class: "run-view" },
      h("p", { class: "facts" }, ...facts.map((fact) => h("span", {}, fact))),
      data.tasks.length > 1 ? this.tabs : null,
      this.results, this.figures, this.samples, failuresOf(data));
    this.width = 0;
    new ResizeObserver(() => {
      if (this.element.clientWidth !== this.width) this.redraw();
    }).observe(this.element);
    this.show(this.task);
  }

  /** @param {RunTask} task */
  show(task) {
    this.task = task;
    [...this.tabs.children].forEach((button, i) => button.setAttribute("aria-pressed", String(this.data.tasks[i] === task)));
    const notes = [...new Set(task.rows.map((row) => row.note).filter(Boolean))];
    const reasons = task.rows.filter((row) => row.changed === 0 && row.reason).map((row) => `${row.method} changed no answer: ${row.reason}`);
    this.results.replaceChildren(h("h3", {}, "Results"), resultTable(task.rows, task.headline, task.higher_is_better),
      h("p", { class: "small" }, "95 % intervals; +/−: difference to the first method on the same samples, * if its interval excludes zero. ", [...notes, ...reasons].join(". ")));
    this.browser = task.samples.length ? new SampleBrowser(task, this.methods) : null;
    this.samples.replaceChildren(...(this.browser ? [this.browser.element] : []));
    this.redraw();
  }

  /** After a change of width or theme. */
  redraw() {
    this.width = this.element.clientWidth;
    const scatters = scattersOf(this.task.rows, this.task.headline, this.task.higher_is_better, this.data.cost);
    const across = this.width > 800 && scatters.length > 1 ? 2 : 1;
    const each = Math.min(620, Math.floor((this.width - 36 * (across - 1)) / across));
    this.figures.replaceChildren(...(this.width ? scatters.map((one) => h("figure", {}, h("figcaption", {}, one.title), scatterPlot(one, each))) : []));
    this.browser?.redraw();
  }
}

/** The samples of a task: filters, a list, and the chosen sample with all its answers. */
class SampleBrowser {
  /** @param {RunTask} task @param {string[]} methods */
  constructor(task, methods) {
    this.task = task;
    this.methods = methods;
    /** @type {AnswerView | null} */
    this.view = null;
    this.at = 0;
    this.found = task.samples;
    this.differ = checkbox("methods differ", () => this.filter());
    this.wrong = checkbox("hallucinated", () => this.filter());
    const tags = [...new Set(task.samples.flatMap((sample) => sample.tags))].sort();
    this.tag = /** @type {HTMLSelectElement} */ (h("select", { class: "category" }, h("option", { value: "" }, "every category"), ...tags.map((tag) => h("option", { value: tag }, tag))));
    this.tag.addEventListener("change", () => this.filter());
    this.count = h("span", { class: "count", "aria-live": "polite" });
    this.list = h("ol", { class: "sample-list", tabindex: 0, role: "listbox", "aria-label": "samples" });
    this.list.addEventListener("click", (event) => {
      const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("li"));
      if (row) this.choose(Number(row.dataset.at));
    });
    this.list.addEventListener("keydown", (event) => {
      const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.found.length - 1, this.at + move)));
    });
    const step = (/** @type {string} */ label, /** @type {number} */ by) => {
      const button = h("button", { type: "button" }, label);
      button.addEventListener("click", () => this.choose((this.at + by + this.found.length) % Math.max(this.found.length, 1)));
      return button;
    };
    this.detail = h("div", { class: "sample" });
    const shownOf = task.samples.length < task.total ? ` The first ${task.samples.length} of ${task.total} are in this page.` : "";
    this.element = h("section", { class: "samples", "aria-label": "Samples" },
      h("div", { class: "bar-of-tools no-print" }, h("h3", {}, "Samples"), this.differ.label, this.wrong.label,
        tags.length ? h("label", { class: "check" }, this.tag) : null, this.count, h("span", { class: "pager" }, step("previous", -1), step("next", 1))),
      shownOf ? h("p", { class: "small" }, shownOf) : null,
      h("div", { class: "sample-grid" }, h("div", {}, this.list, h("p", { class: "small" }, "One sign per method: ● no hallucination, ✕ hallucinated, – wrong, ! no answer.")), this.detail));
    this.filter();
  }

  filter() {
    const tag = this.tag.value;
    this.found = this.task.samples.filter((sample) =>
      (!this.differ.input.checked || sample.texts.length > 1) &&
      (!this.wrong.input.checked || sample.texts.some((text) => text.wrong)) &&
      (!tag || sample.tags.includes(tag)));
    this.count.textContent = `${this.found.length} of ${this.task.samples.length}`;
    this.list.replaceChildren(...this.found.map((sample, i) => this.row(sample, i)));
    this.choose(0);
  }

  /** @param {RunSample} sample @param {number} i */
  row(sample, i) {
    const signs = sample.answers.map((answer, at) => {
      const text = answer && answer.text !== null ? sample.texts[answer.text] : null;
      const [sign, kind] = !text ? ["!", "failed"] : text.wrong ? ["✕", "wrong"] : text.correct === false ? ["–", "missed"] : ["●", "right"];
      return h("i", { class: `verdict ${kind}`, title: `${this.methods[at]}: ${!text ? "no answer" : text.wrong ? "hallucinated" : text.correct === false ? "wrong" : "no hallucination"}` }, sign);
    });
    return h("li", { role: "option", "data-at": i }, h("span", { class: "sample-id" }, sample.id), h("span", { class: "verdicts" }, ...signs));
  }

  /** @param {number} at */
  choose(at) {
    this.list.children[this.at]?.setAttribute("aria-selected", "false");
    this.at = at;
    const row = /** @type {HTMLElement | undefined} */ (this.list.children[at]);
    row?.setAttribute("aria-selected", "true");
    if (row) {
      const [box, own] = [this.list.getBoundingClientRect(), row.getBoundingClientRect()];
      if (own.top < box.top || own.bottom > box.bottom) this.list.scrollTop += own.top - box.top - box.height / 2;
    }
    const sample = this.found[at];
    if (!sample) {
      this.view = null;
      this.detail.replaceChildren(h("p", { class: "small" }, "No sample fits these filters."));
      return;
    }
    this.view = new AnswerView(answerDataOf(sample, this.task, this.methods));
    const failed = sample.answers.flatMap((answer, i) => (answer?.error ? [h("p", { class: "wrong-text" }, `${this.methods[i]} failed: ${answer.error}`)] : []));
    this.detail.replaceChildren(h("p", { class: "prompt" }, sample.prompt), sample.truth ? h("p", { class: "small" }, sample.truth) : h("p", { class: "small" }, sample.id), ...failed, this.view.element);
  }

  redraw() {
    this.view?.redraw();
  }
}

/** The answers to a sample as data of an answer view; methods with the same text share it.
 * @param {RunSample} sample @param {RunTask} task @param {string[]} methods @returns {AnswerData} */
function answerDataOf(sample, task, methods) {
  const answers = sample.texts.map((text, i) => {
    const own = methods.filter((_, at) => sample.answers[at]?.text === i);
    const verdict = text.verdict === undefined ? null : { text: text.correct ? "correct" : text.wrong ? "hallucinated" : "wrong", good: Boolean(text.correct) };
    return {
      name: own.join(", "), method: "", model: "", options: {}, text: text.text, tokens: null, logprobs: null, risk: null, entropy: null,
      margin: null, share: null, mentions: text.marks, fired: null, equilibrium: null, refreshed: [], heads: null, verdict,
    };
  });
  const images = sample.picture === null ? [] : [{ source: task.pictures[sample.picture], width: 192, height: 192 }];
  return { kind: "answer", title: sample.id, prompt: sample.prompt, notes: [], images, objects: sample.objects, answers };
}

/** @param {string} name @param {() => void} changed */
function checkbox(name, changed) {
  const input = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", name: name.replaceAll(" ", "-") }));
  input.addEventListener("change", changed);
  return { input, label: h("label", { class: "check" }, input, name) };
}

/** @param {RunData} data */
function failuresOf(data) {
  if (!data.failures.length) return null;
  const rows = data.failures.map((one) => h("tr", {}, h("td", {}, one.task), h("td", {}, one.sample), h("td", {}, one.method), h("td", {}, one.error)));
  const more = data.failed > data.failures.length ? h("p", { class: "small" }, `The first ${data.failures.length} of ${data.failed}.`) : null;
  return h("section", { class: "failures" }, h("h3", {}, `Failures (${data.failed})`), more,
    h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": "failures" },
      h("table", { class: "results" }, h("thead", {}, h("tr", {}, ...["task", "sample", "method", "error"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...rows))));
}
