// The answer view: picture, texts, the course of the answer, and the heads.

const PLAY_MS = 350;

/** One prompt with one or several answers. */
class AnswerView {
  /** @param {AnswerData} data */
  constructor(data) {
    this.data = data;
    this.answers = data.answers.map((record, i) => new Answer(record, i));
    for (const answer of this.answers.slice(1)) answer.partners = aligned(this.answers[0].tokens, answer.tokens);
    this.active = 0;
    /** What the pointer is over, until it leaves. @type {{active: number, step: number} | null} */
    this.preview = null;
    this.steps = Math.max(1, ...this.answers.map((answer) => answer.steps));
    this.shading = SHADINGS.filter((one) => one.name === "none" || this.answers.some((a) => a.series(one.name)))[0].name;
    this.scale = h("span", { class: "scale-of-shade" });
    this.comparing = true;
    this.playing = 0;
    this.width = 0;
    this.chosen = 0;
    this.live = h("p", { class: "unseen", "aria-live": "polite" });
    this.texts = this.answers.map((answer, i) => new TokenText(answer,
      (step) => this.look(i, step), (step) => this.choose(i, step)));
    this.card = new TokenCard(this.answers);
    this.panel = this.answers.some((answer) => answer.heads) ? new HeadPanel(this.answers, (i, step) => this.choose(i, step), (answer) => this.lookWith(answer)) : null;
    /** @type {PatchOverlay | null} */
    this.overlay = null;
    this.course = this.measured() ? this.courseBox() : null;
    this.element = this.build();
    this.start();
  }

  /** Whether anything is known about single tokens. */
  measured() {
    return this.answers.some((answer) => answer.record.tokens && (answer.record.logprobs || answer.heads || answer.record.risk));
  }

  build() {
    const { data } = this;
    const figures = data.images.map((image, i) =>
      h("figure", { class: "picture" }, h("img", { src: image.source, alt: `picture ${i + 1} of the prompt`, width: image.width, height: image.height })));
    if (figures.length && this.answers.some((answer) => answer.patches)) this.overlay = new PatchOverlay(this.answers, figures[0]);
    const objects = data.objects === null ? [] : [h("p", { class: "objects" }, h("b", {}, "In the picture: "), data.objects.join(", ") || "nothing known")];
    const scene = figures.length || objects.length ? h("div", { class: "scene" }, ...figures, h("div", { class: "scene-text" }, ...objects, this.overlay?.element ?? null)) : null;
    const rail = h("aside", { class: "rail" }, scene, this.measured() ? this.card.element : null);
    const body = h("div", { class: "body" }, this.tools(), h("div", { class: "answers" }, ...this.answers.map((_, i) => this.textBox(i))),
      this.course, this.panel?.element ?? null);
    const empty = !scene && !this.measured();
    const view = h("section", { class: `answer-view${empty ? " without-rail" : ""}` }, this.live, rail, body);
    view.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    return view;
  }

  start() {
    const first = this.answers[0];
    const wrong = first?.mentions.findIndex((mention) => mention !== null && !mention.correct) ?? -1;
    this.shadeTexts();
    this.compare();
    this.place(0, Math.max(wrong, 0));
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.element);
  }

  // ── building ───────────────────────────────────────────────────────────────────────────────────────────

  tools() {
    const usable = SHADINGS.filter((one) => one.name === "none" || this.answers.some((answer) => answer.series(one.name)));
    const box = h("div", { class: "bar-of-tools no-print" });
    if (usable.length > 1) {
      const group = h("fieldset", { class: "switch" }, h("legend", {}, "shade by"));
      const name = `shading-${Math.random().toString(36).slice(2)}`;
      for (const one of usable) {
        const input = /** @type {HTMLInputElement} */ (h("input", { type: "radio", name, value: one.name, checked: one.name === this.shading }));
        input.addEventListener("change", () => this.shade(one.name));
        group.append(h("label", { title: one.title }, input, h("span", {}, one.label)));
      }
      box.append(group, this.scale);
    }
    if (this.answers.length > 1) {
      const input = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", checked: true, class: "compare" }));
      input.addEventListener("change", () => {
        this.comparing = input.checked;
        this.compare();
      });
      box.append(h("label", { class: "check" }, input, "outline differences"));
    }
    return box;
  }

  /** @param {number} i */
  textBox(i) {
    const answer = this.answers[i];
    const wrong = new Set(answer.record.mentions.filter((m) => !m.correct).map((m) => m.category)).size;
    const right = new Set(answer.record.mentions.filter((m) => m.correct).map((m) => m.category)).size;
    const facts = [];
    if (answer.record.tokens) facts.push(h("span", {}, `${answer.steps} tokens`));
    const { verdict } = answer.record;
    if (verdict) facts.push(h("span", { class: verdict.good ? "right-text" : "wrong-text" }, verdict.text));
    if (this.data.objects !== null) {
      facts.push(h("span", { class: wrong ? "wrong-text" : "" }, `${wrong} hallucinated`), h("span", {}, `${right} of ${this.data.objects.length} correct`));
    }
    const { fired } = answer.record;
    if (fired) facts.push(h("span", {}, fired.reason ? `unchanged because ${fired.reason}` : `changed in ${fired.steps} steps`));
    const options = Object.entries(answer.record.options).filter(([, value]) => value !== null && value !== "");
    const details = options.length
      ? [h("details", { class: "options" }, h("summary", {}, "options"), h("p", {}, options.map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ")))] : [];
    return h("article", { class: "answer" },
      h("header", {}, h("h3", {}, h("i", { class: `key answer-${i % 4}` }), answer.name), h("p", { class: "facts" }, ...facts)),
      this.texts[i].element, ...details);
  }

  courseBox() {
    this.slider = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: 0, max: this.steps - 1, step: 1, value: 0, "aria-label": "token" }));
    this.slider.addEventListener("input", () => this.choose(this.active, Math.min(Number(this.slider?.value), this.answers[this.active].steps - 1)));
    this.button = h("button", { type: "button", class: "play", "aria-label": "play" }, "▶");
    this.button.addEventListener("click", () => this.play(!this.playing));
    this.figures = h("div", { class: "course-figures" });
    return h("section", { class: "course", "aria-label": "Along the answer" },
      h("div", { class: "bar-of-tools" }, h("h3", {}, "Along the answer"), h("p", { class: "course-key" }, ...this.courseKey())),
      this.figures, h("div", { class: "slide no-print" }, this.button, this.slider));
  }

  courseKey() {
    const keys = this.answers.map((answer, i) => h("span", { class: "series" }, h("i", { class: `key answer-${i % 4}` }), answer.name));
    const marks = this.answers.some((answer) => answer.mentions.some(Boolean))
      ? [h("span", { class: "series" }, h("b", { class: "wrong-text" }, "✕ "), "hallucinated"), h("span", { class: "series" }, h("b", { class: "right-text" }, "● "), "correct")] : [];
    const refreshed = this.answers.some((answer) => answer.refreshed.size) ? [h("span", { class: "series" }, h("b", {}, "| "), "refresh of head types")] : [];
    return [...keys, ...marks, ...refreshed];
  }

  // ── drawing ────────────────────────────────────────────────────────────────────────────────────────────

  resize() {
    const width = this.element.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    this.redraw();
  }

  /** After a change of width or theme. */
  redraw() {
    this.drawCourse();
    this.panel?.resize();
    this.update();
  }

  drawCourse() {
    if (!this.figures) return;
    const width = this.figures.clientWidth;
    const name = ["risk", "surprise"].includes(this.shading) ? this.shading : this.answers.some((a) => a.series("share")) ? "share" : "surprise";
    const label = SHADINGS.find((one) => one.name === name);
    const lines = this.answers.map((answer, i) => ({ name: answer.name, className: `answer-${i % 4}`, values: answer.series(name) ?? [] }));
    const signs = this.answers.flatMap((answer, i) => signsOf(answer, lines[i].values));
    const equilibrium = name === "share" ? this.answers.map((a) => a.record.equilibrium).find((value) => value !== null) : undefined;
    const level = equilibrium === undefined || equilibrium === null ? null : { value: equilibrium, name: `equilibrium ${equilibrium}` };
    const refreshed = this.answers.map((answer, i) => ({ className: `answer-${i % 4}`, steps: [...answer.refreshed] }));
    const given = { title: `${label?.label} of each token`, lines, height: 190, width, steps: this.steps, signs, level, refreshed, axis: "token", ticks: 4 };
    this.plot = new StepPlot(given, (step) => this.choose(this.active, Math.max(0, Math.min(step, this.answers[this.active].steps - 1))));
    const strips = this.answers.filter((answer) => answer.heads).map((answer) =>
      h("figure", {}, h("figcaption", {}, h("i", { class: `key answer-${answer.index % 4}` }), `${answer.name}: types of the heads`),
        typeStrip(/** @type {Heads} */ (answer.heads), width, 30, this.steps)));
    this.figures.replaceChildren(h("figure", {}, h("figcaption", {}, label?.title ?? ""), this.plot.element), ...strips);
  }

  // ── what is chosen ─────────────────────────────────────────────────────────────────────────────────────

  /** @param {number} i @param {number | null} step */
  look(i, step) {
    const before = this.preview;
    this.preview = step === null ? null : { active: i, step };
    if (before || this.preview) this.update();
  }

  /** @param {number} i @param {number} step */
  choose(i, step) {
    this.preview = null;
    this.place(i, step);
    this.update();
    this.live.textContent = this.answers[i].described(this.answers[i].step);
  }

  /** @param {number} i @param {number} step */
  place(i, step) {
    this.active = i;
    this.chosen = Math.max(0, Math.min(step, this.answers[i].steps - 1));
  }

  /** The step of every answer, given the chosen one of the active answer. */
  update() {
    const { active, step } = this.preview ?? { active: this.active, step: this.chosen };
    const own = this.answers[active];
    const base = active === 0 ? step : own.partners ? partnerOf(own.partners[1], step) : step;
    for (const answer of this.answers) {
      if (answer.index === active) answer.step = step;
      else answer.step = answer.index === 0 ? base : answer.partners ? partnerOf(answer.partners[0], base) : 0;
      if (this.measured()) this.texts[answer.index].mark(answer.step, answer.index === active);
    }
    if (this.measured()) this.card.update(active, this.answers.map((answer) => answer.step));
    this.plot?.move(this.answers.map((answer) => ({ step: answer.step, className: `answer-${answer.index % 4}` })));
    if (this.slider) {
      this.slider.value = String(step);
      this.slider.setAttribute("aria-valuetext", own.described(step));
    }
    this.panel?.update();
    if (this.panel) this.overlay?.update(own, this.panel.head);
  }

  /** A head of an answer was clicked: show where it looks. @param {Answer} answer */
  lookWith(answer) {
    if (!this.panel || !this.overlay) return;
    this.overlay.update(answer, this.panel.head);
    this.overlay.show();
  }

  /** @param {string} name */
  shade(name) {
    this.shading = name;
    this.shadeTexts();
    this.drawCourse();
    this.update();
  }

  /** Shares are shaded over the range of all answers, probabilities from 0 to 1. */
  shadeTexts() {
    const name = this.shading;
    const shares = this.answers.flatMap((answer) => answer.shading("share") ?? []).filter((value) => !Number.isNaN(value));
    const range = name === "share" && shares.length ? [Math.min(...shares), Math.max(...shares)] : [0, 1];
    for (const text of this.texts) text.shade(name, range);
    const ramp = h("i");
    ramp.style.background = `linear-gradient(to right, transparent, var(--shade-${name}))`;
    this.scale.replaceChildren(...(name === "none" ? [] : [shown(range[0]), ramp, shown(range[1])]));
  }

  compare() {
    const [first, ...others] = this.texts;
    for (const text of others) text.compare(this.comparing, text.answer.partners?.[1] ?? null);
    const partners = others.map((text) => text.answer.partners?.[0]);
    if (first && others.length) {
      const best = Int32Array.from(first.answer.tokens, (_, i) => Math.max(...partners.map((own) => own?.[i] ?? -1)));
      first.compare(this.comparing, best);
    }
  }

  /** @param {boolean} on */
  play(on) {
    clearInterval(this.playing);
    this.playing = 0;
    if (on) {
      if (this.chosen >= this.answers[this.active].steps - 1) this.choose(this.active, 0);
      this.playing = window.setInterval(() => {
        const last = this.answers[this.active].steps - 1;
        this.choose(this.active, this.chosen + 1);
        if (this.chosen >= last) this.play(false);
      }, PLAY_MS);
    }
    if (this.button) {
      this.button.textContent = this.playing ? "❚❚" : "▶";
      this.button.setAttribute("aria-label", this.playing ? "pause" : "play");
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.altKey || event.metaKey || !target.closest(".tokens")) return;
    const i = this.texts.findIndex((text) => text.element === target.closest(".tokens"));
    const step = this.active === i ? this.chosen : this.answers[i].step;
    const last = this.answers[i].steps - 1;
    const moves = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last, PageUp: step - 10, PageDown: step + 10 };
    const to = /** @type {Record<string, number>} */ (moves)[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.choose(i, Math.max(0, Math.min(to, last)));
    } else if (event.key === "n" || event.key === "p") {
      const found = this.answers[i].nextMention(step, event.key === "n" ? 1 : -1);
      if (found !== null) this.choose(i, found);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const other = (i + (event.key === "ArrowDown" ? 1 : -1) + this.texts.length) % this.texts.length;
      event.preventDefault();
      this.texts[other].element.focus();
      this.choose(other, this.answers[other].step);
    } else if (event.key === " ") {
      event.preventDefault();
      this.play(!this.playing);
    }
  }
}

/** The marks of objects in the figure along the answer. @param {Answer} answer @param {(number | null)[]} values */
function signsOf(answer, values) {
  /** @type {Sign[]} */
  const found = [];
  answer.mentions.forEach((mention, step) => {
    const value = values[step];
    if (!mention || value === null || value === undefined || answer.mentions[step - 1] === mention) return;
    const [sign, className] = mention.correct ? ["●", "right"] : ["✕", "wrong"];
    found.push({ step, value, sign, className, title: `${answer.name}: ${mention.category}` });
  });
  return found;
}
