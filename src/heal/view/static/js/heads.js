// The maps of layers and heads, and the chosen head along the answer.

/** The lines of the chosen head, by figure. */
const HEAD_PLOTS = [
  { title: "information", names: [["visual", "I_vis"], ["language", "I_lang"], ["synergy", "I_syn"]] },
  { title: "visual share", names: [["share", "α_vis"]], level: true },
  { title: "factors", names: [["beta", "β"], ["gamma", "γ"]] },
  { title: "contribution", names: [["contribution", "contribution"]] },
];

/** Maps of all answers, their legend, and the figures of the chosen head. */
class HeadPanel {
  /**
   * @param {Answer[]} answers @param {(answer: number, step: number) => void} choose
   * @param {(answer: Answer) => void} clicked called after a head of this answer was chosen
   */
  constructor(answers, choose, clicked) {
    this.clicked = clicked;
    this.answers = answers.filter((answer) => answer.heads);
    this.choose = choose;
    this.all = this.answers.map((answer) => /** @type {Heads} */ (answer.heads));
    this.head = this.mostChanging();
    const known = COLOURINGS.filter((one) => this.all.some((heads) => heads.has(one.name)));
    this.colouring = known[0];
    const options = known.map((one) => h("option", { value: one.name }, one.label));
    this.select = /** @type {HTMLSelectElement} */ (h("select", { id: "colouring" }, ...options));
    this.select.addEventListener("change", () => {
      this.colouring = known.find((one) => one.name === this.select.value) ?? known[0];
      this.recolour();
    });
    this.legend = h("div", { class: "legend" });
    this.columns = this.answers.map((answer) => this.column(answer));
    this.element = h(
      "section", { class: "heads", "aria-label": "Heads" },
      h("div", { class: "bar-of-tools" }, h("h3", {}, "Heads at this token"),
        h("label", {}, "colour ", this.select)),
      this.legend, h("div", { class: "columns" }, ...this.columns.map((one) => one.element)),
    );
  }

  /** The head whose types change most often; a good one to start with. */
  mostChanging() {
    const heads = this.all[0];
    let [best, most] = [0, -1];
    for (let head = 0; heads && head < heads.size; head++) {
      let changes = 0;
      for (let i = 1; i < heads.firsts.length; i++) {
        changes += Number(heads.type(heads.firsts[i], head) !== heads.type(heads.firsts[i - 1], head));
      }
      if (changes > most) [best, most] = [head, changes];
    }
    return best;
  }

  /** @param {Answer} answer */
  column(answer) {
    const heads = /** @type {Heads} */ (answer.heads);
    const line = h("div", { class: "readout" });
    const column = { answer, heads, line, plots: /** @type {StepPlot[]} */ ([]), box: h("div", { class: "plots" }) };
    const say = (/** @type {number | null} */ head) => line.replaceChildren(...readout(answer, head ?? this.head));
    const map = new HeadMap(heads, answer.name, (head) => this.chooseHead(head, answer), say);
    const element = h(
      "div", { class: "column" },
      h("h4", {}, h("i", { class: `key answer-${answer.index % 4}` }), answer.name),
      h("div", { class: "map-box" }, map.canvas, line), column.box,
    );
    return { ...column, map, element, say };
  }

  /** @param {number} head @param {Answer} answer */
  chooseHead(head, answer) {
    this.head = head;
    this.drawPlots();
    this.update();
    this.clicked(answer);
  }

  /** After a change of width or theme. */
  resize() {
    this.colours = palette();
    for (const { map, element, line } of this.columns) {
      map.fit(Math.min(element.clientWidth, 620));
      line.classList.toggle("below", map.canvas.clientWidth + 190 > element.clientWidth);
    }
    this.drawPlots();
    this.recolour();
  }

  recolour() {
    this.range = rangeIn(this.colouring, this.all);
    this.legend.replaceChildren(...legendOf(this.colouring, this.range, this.all));
    this.update();
  }

  drawPlots() {
    for (const column of this.columns) {
      const width = column.box.clientWidth;
      const plots = HEAD_PLOTS.filter((plot) => plot.names.some(([name]) => column.heads.has(name)));
      const across = width > 700 ? 2 : 1;
      column.plots = plots.map((plot) => this.plot(plot, column, Math.floor((width - 16 * (across - 1)) / across)));
      column.box.classList.toggle("two", across === 2);
      column.box.replaceChildren(...column.plots.map((one, i) => h("figure", {}, captionOf(plots[i]), one.element)));
    }
  }

  /** @param {typeof HEAD_PLOTS[number]} plot @param {{heads: Heads, answer: Answer}} column @param {number} width */
  plot(plot, { heads, answer }, width) {
    const lines = plot.names.filter(([name]) => heads.has(name)).map(([name, label]) => ({
      name: label, className: `is-${name}`,
      values: Array.from({ length: heads.steps }, (_, step) => heads.value(name, step, this.head)),
    }));
    const level = plot.level && answer.record.equilibrium !== null
      ? { value: answer.record.equilibrium, name: `α = ${answer.record.equilibrium}` } : null;
    const given = { title: `${plot.title} of the chosen head, ${answer.name}`, lines, height: 96, width, steps: heads.steps, level };
    return new StepPlot(given, (step) => this.choose(answer.index, step));
  }

  update() {
    if (!this.colours) return;
    for (const column of this.columns) {
      const { answer, map, say, plots } = column;
      map.draw(answer.step, this.colouring, this.range ?? [0, 1], this.colours, this.head);
      say(null);
      for (const plot of plots) plot.move([{ step: answer.step, className: `answer-${answer.index % 4}` }]);
    }
  }
}

/** @param {typeof HEAD_PLOTS[number]} plot */
function captionOf(plot) {
  const keys = plot.names.length > 1
    ? plot.names.map(([name, label]) => h("span", { class: "series" }, h("i", { class: `key is-${name}` }), symbol(label))) : [];
  return h("figcaption", {}, plot.title, ...keys);
}

/** @param {Answer} answer @param {number} head @returns {Node[]} */
function readout(answer, head) {
  const heads = /** @type {Heads} */ (answer.heads);
  const type = TYPES.find((one) => one.code === heads.type(answer.step, head));
  const names = { share: "α_vis", visual: "I_vis", language: "I_lang", synergy: "I_syn", beta: "β", gamma: "γ", contribution: "contribution" };
  const values = Object.entries(names).filter(([name]) => heads.has(name)).map(([name, label]) =>
    h("span", { class: "pair" }, symbol(label), h("b", {}, shown(heads.value(name, answer.step, head), 3))));
  const place = `layer ${Math.floor(head / heads.heads)}, head ${head % heads.heads}`;
  const swatch = h("i", { class: `swatch type-${type?.code ?? 255}` }, type?.letter ?? "?");
  return [h("span", { class: "place" }, place), h("span", { class: "kind" }, swatch, type?.name ?? "unknown"), ...values];
}

/** @param {typeof COLOURINGS[number]} colouring @param {[number, number]} range @param {Heads[]} all */
function legendOf(colouring, range, all) {
  if (colouring.name === "type") {
    const present = new Set(all.flatMap((heads) => [...new Set(heads.codes)]));
    return TYPES.filter((type) => type.code !== 255 || present.has(255)).map((type) =>
      h("p", {}, h("i", { class: `swatch type-${type.code}` }, type.letter), h("b", {}, type.name), ` ${type.line}`));
  }
  const middle = colouring.middle === undefined ? [] : [h("span", {}, shown((range[0] + range[1]) / 2))];
  const ramp = h("div", { class: `ramp ${middle.length ? "diverging" : "sequential"}` });
  const ends = h("div", { class: "ends" }, h("span", {}, shown(range[0])), ...middle, h("span", {}, shown(range[1])));
  const note = colouring.middle === undefined ? "Colour grows with the square root of the value." : "";
  return [h("div", { class: "scale" }, h("b", {}, colouring.label), ramp, ends),
    h("p", {}, `A diagonal line: not measured at this head. ${note}`)];
}
