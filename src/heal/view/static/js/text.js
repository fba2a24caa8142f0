// The text of an answer, token by token, and the card of the chosen token.

/** What the background of a word can show. */
const SHADINGS = [
  { name: "risk", label: "risk", title: "probability that an object word is hallucinated" },
  { name: "share", label: "visual share", title: "mean visual share of the synergy heads" },
  { name: "surprise", label: "surprise", title: "how unlikely the word was: 1 − its probability" },
  { name: "none", label: "none", title: "no shading" },
];

/** One answer with everything that is computed from it once. */
class Answer {
  /** @param {AnswerRecord} record @param {number} index */
  constructor(record, index) {
    this.record = record;
    this.index = index;
    this.name = record.name;
    this.tokens = record.tokens ?? piecesOf(record.text);
    this.steps = this.tokens.length;
    this.words = wordsOf(this.tokens);
    this.heads = record.heads && this.steps ? new Heads(record.heads, this.steps) : null;
    this.headsAcross = this.heads?.heads ?? 1;
    this.patches = record.patches && this.heads ? new Patches(record.patches, this.heads.size, this.steps) : null;
    this.refreshed = new Set(record.refreshed);
    /** @type {(Mention | null)[]} */
    this.mentions = this.tokens.map(() => null);
    this.ends = new Set();
    let at = 0;
    for (const [i, token] of this.tokens.entries()) {
      const [start, stop] = [at + (token.length - token.trimStart().length), at + token.length];
      const found = record.mentions.find((one) => one.start < stop && one.stop > start);
      if (found && start < stop) {
        this.mentions[i] = found;
        if (found.stop <= stop) this.ends.add(i);
      }
      at = stop;
    }
    /** The object word that a token belongs to, where risks are known. @type {(RiskyWord | null)[]} */
    this.risky = this.tokens.map((_, i) => record.words?.find((word) => word.start <= i && i < word.stop) ?? null);
    /** The partner of each token in the first answer, and the reverse. @type {[Int32Array, Int32Array] | null} */
    this.partners = null;
    this.step = 0;
  }

  /** A series as numbers for every step, or null. @param {string} name @returns {(number | null)[] | null} */
  series(name) {
    const { record } = this;
    if (name === "risk" && record.words) return this.risky.map((word) => word?.risk ?? null);
    if (name === "surprise") return record.logprobs?.map((p) => (p === null ? null : 1 - Math.exp(p))) ?? null;
    return /** @type {Record<string, any>} */ (record)[name] ?? null;
  }

  /** The value of every word, given to each of its tokens: the highest risk, the mean share, the whole probability.
   * @param {string} name @returns {number[] | null} */
  shading(name) {
    const values = this.series(name);
    if (!values) return null;
    /** @type {number[][]} */
    const groups = [];
    values.forEach((value, i) => {
      (groups[this.words[i]] ??= []).push(value ?? NaN);
    });
    const joined = groups.map((group) => {
      const known = group.filter((value) => !Number.isNaN(value));
      if (!known.length) return NaN;
      if (name === "share") return known.reduce((a, b) => a + b, 0) / known.length;
      if (name === "surprise") return 1 - known.reduce((all, value) => all * (1 - value), 1);
      return Math.max(...known);
    });
    return this.words.map((word) => joined[word]);
  }

  /** The first token of the next or previous object name. @param {number} step @param {number} direction */
  nextMention(step, direction) {
    for (let at = step + direction; at >= 0 && at < this.steps; at += direction) {
      if (this.mentions[at] && this.mentions[at] !== this.mentions[at - 1]) return at;
    }
    return null;
  }

  /** What is known about a token, in one sentence for a screen reader. @param {number} step */
  described(step) {
    const mention = this.mentions[step];
    const parts = [`${this.name}, token ${step + 1} of ${this.steps}: ${this.tokens[step].trim() || "space"}`];
    if (mention) parts.push(`${mention.correct ? "correct" : "hallucinated"} object ${mention.category}`);
    const [risk, share] = [this.series("risk")?.[step], this.record.share?.[step]];
    if (risk !== undefined && risk !== null) parts.push(`risk ${fixed(risk, 2)}${this.risky[step]?.doubtful ? ", doubtful" : ""}`);
    if (share !== undefined && share !== null) parts.push(`visual share ${shown(share)}`);
    return parts.join(", ");
  }
}

/** The text of one answer. Calls `look` for the token under the pointer and `choose` for a click or an arrow key. */
class TokenText {
  /**
   * @param {Answer} answer @param {(step: number | null) => void} look @param {(step: number) => void} choose
   */
  constructor(answer, look, choose) {
    this.answer = answer;
    this.spans = answer.tokens.map((token, step) => this.span(token, step));
    /** The spaces before tokens. @type {(HTMLElement | null)[]} */
    this.gaps = answer.tokens.map((token, step) => {
      const space = token.slice(0, token.length - token.trimStart().length);
      return step && space && token.trim() ? h("span", { class: "gap" }, space) : null;
    });
    const pieces = this.spans.flatMap((span, step) => [this.gaps[step], span]);
    const label = `Answer of ${answer.name}. Arrow keys move between tokens`;
    this.element = h("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": label }, ...pieces);
    this.element.addEventListener("pointerover", (event) => {
      const step = this.stepOf(event);
      if (step !== null && event.pointerType !== "touch") look(step);
    });
    this.element.addEventListener("pointerleave", () => look(null));
    this.element.addEventListener("click", (event) => {
      const step = this.stepOf(event);
      if (step !== null) choose(step);
    });
  }

  /** @param {string} token @param {number} step */
  span(token, step) {
    const mention = this.answer.mentions[step];
    const names = ["token"];
    if (mention) names.push(mention.correct ? "correct" : "wrong");
    if (mention && this.answer.ends.has(step)) names.push("end");
    if (/^<[^<>\s]*>$/.test(token.trim())) names.push("special");
    return h("span", { class: names.join(" "), "data-step": step }, token.trim() ? token.trimStart() : token);
  }

  /** @param {Event} event */
  stepOf(event) {
    const span = /** @type {Element} */ (event.target).closest(".token");
    return span ? Number(/** @type {HTMLElement} */ (span).dataset.step) : null;
  }

  /** @param {string} name @param {number[]} range the values with no and with full colour */
  shade(name, [low, high]) {
    const values = name === "none" ? null : this.answer.shading(name);
    this.spans.forEach((span, step) => {
      const value = values ? values[step] : NaN;
      const part = Math.round(100 * Math.max(0, Math.min(1, (value - low) / (high - low || 1))));
      span.style.backgroundColor = Number.isNaN(value)
        ? ""
        : `color-mix(in srgb, var(--shade-${name}) ${part}%, transparent)`;
    });
  }

  /** Outlines the runs of tokens without a partner in the other answer. @param {boolean} on @param {Int32Array | null} partners */
  compare(on, partners) {
    const alone = (/** @type {number} */ step) => on && partners !== null && partners[step] < 0;
    this.spans.forEach((span, step) => {
      span.classList.toggle("differs", alone(step));
      span.classList.toggle("from", alone(step) && !alone(step - 1));
      span.classList.toggle("to", alone(step) && !alone(step + 1));
      this.gaps[step]?.classList.toggle("differs", alone(step) && alone(step - 1));
    });
  }

  /** @param {number} step @param {boolean} active */
  mark(step, active) {
    this.current?.classList.remove("current", "partner");
    this.current = this.spans[step];
    this.current?.classList.add(active ? "current" : "partner");
  }
}

/** The measurements of the chosen token of every answer, side by side. */
class TokenCard {
  /** @param {Answer[]} answers */
  constructor(answers) {
    this.answers = answers;
    this.element = h("div", { class: answers.length > 2 ? "card of-many" : "card" });
  }

  /** @param {number} active @param {number[]} steps */
  update(active, steps) {
    const table = h("table", {}, h("caption", { class: "unseen" }, "Measurements at the chosen token"));
    const cells = (/** @type {(answer: Answer, step: number) => Node | string} */ of) =>
      this.answers.map((answer, i) => h("td", { class: i === active ? "active" : "" }, of(answer, steps[i])));
    const row = (/** @type {Node | string} */ name, /** @type {HTMLElement[]} */ own, kind = "") =>
      table.append(h("tr", { class: kind }, h("th", { scope: "row" }, name), ...own));
    if (this.answers.length > 1) {
      const names = this.answers.map((one, i) =>
        h("th", { scope: "col", class: i === active ? "active" : "" }, h("i", { class: `key answer-${i % 4}` }), one.name));
      table.append(h("tr", {}, h("td"), ...names));
    }
    row("token", cells((answer, step) => h("span", { class: "word" }, answer.tokens[step]?.trim() || "␣")), "words");
    row("position", cells((answer, step) => `${step + 1} / ${answer.steps}`));
    if (this.answers.some((answer) => answer.mentions.some(Boolean))) row("object", cells(objectAt));
    const known = (/** @type {string} */ name) => this.answers.some((answer) => answer.series(name));
    const value = (/** @type {string} */ name) =>
      cells((answer, step) => shown(answer.series(name)?.[step]));
    if (known("logprobs")) {
      row("log-prob.", value("logprobs"));
      row("probability", cells((answer, step) => percent(answer.record.logprobs?.[step])));
    }
    for (const name of ["entropy", "margin"]) if (known(name)) row(name, value(name));
    if (known("risk")) row("risk", cells((answer, step) => fixed(answer.series("risk")?.[step], 2)));
    if (known("share")) row("visual share", value("share"));
    const counts = this.answers.map((answer, i) => answer.heads?.counts(steps[i]) ?? null);
    if (counts.some(Boolean)) {
      row("heads", this.answers.map((answer, i) => h("td", {}, answer.refreshed.has(steps[i]) ? "refresh" : "")), "section");
      for (const type of TYPES.filter((one) => counts.some((own) => own?.get(one.code)))) {
        const label = h("span", {}, h("i", { class: `swatch type-${type.code}` }, type.letter), type.name);
        row(label, counts.map((own, i) => h("td", { class: i === active ? "active" : "" }, String(own?.get(type.code) ?? 0))));
      }
    }
    const [own, step] = [this.answers[active], steps[active]];
    this.element.replaceChildren(table, ...reasonsOf(own, step), ...alternativesOf(own, step));
  }
}

/** @param {Answer} answer @param {number} step */
function objectAt(answer, step) {
  const mention = answer.mentions[step];
  if (!mention) return "–";
  const [sign, name] = mention.correct ? ["● ", "correct"] : ["✕ ", "hallucinated"];
  return h("span", { class: mention.correct ? "right-text" : "wrong-text", title: name }, sign, mention.category);
}

/** @param {number | null | undefined} logprob */
function percent(logprob) {
  if (logprob === null || logprob === undefined) return "–";
  const value = 100 * Math.exp(logprob);
  return value >= 99.95 ? "100 %" : `${value.toFixed(1)} %`;
}

/** What raised and lowered the risk of the word at this step. @param {Answer} answer @param {number} step */
function reasonsOf(answer, step) {
  const word = answer.risky[step];
  if (!word) return [];
  const lines = word.reasons.map(([about, odds]) => {
    const raises = odds > 0;
    return h("li", { title: `${raises ? "raises" : "lowers"} the log-odds of a hallucination by ${shown(Math.abs(odds), 1)}` },
      h("span", {}, about), h("b", { class: raises ? "wrong-text" : "right-text" }, `${raises ? "+" : ""}${shown(odds, 1)}`));
  });
  const name = `${word.category}: ${word.doubtful ? "doubtful" : "not doubtful"}, risk ${fixed(word.risk, 2)}`;
  return [h("h4", {}, name), h("p", { class: "note-of-list" }, "log-odds against the average object word"), h("ul", { class: "reasons" }, ...lines)];
}

/** The chosen token and the likeliest others, if the trace has them. @param {Answer} answer @param {number} step */
function alternativesOf(answer, step) {
  const others = answer.record.alternatives?.[step];
  if (!others?.length) return [];
  const own = answer.record.logprobs?.[step] ?? null;
  /** @type {[string, number | null, boolean][]} */
  const all = [[answer.tokens[step], own, true], ...others.map(([token, logprob]) => /** @type {[string, number, boolean]} */ ([token, logprob, false]))];
  all.sort((a, b) => (b[1] ?? 1) - (a[1] ?? 1));
  const bars = all.map(([token, logprob, taken]) => {
    const bar = h("i", { class: "bar" });
    bar.style.width = logprob === null ? "0" : `${Math.max(1, 100 * Math.exp(logprob))}%`;
    return h("li", { class: taken ? "taken" : "" }, h("span", { class: "word" }, token.trim() || "␣"), h("span", { class: "track" }, bar), percent(logprob));
  });
  return [h("h4", {}, "likeliest tokens"), h("ol", { class: "alternatives" }, ...bars)];
}
