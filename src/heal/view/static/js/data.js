// The data format (docs/view.md), and how it is read: packed arrays, words, aligned answers.

/**
 * @typedef {{steps: number[], bits: number, low: string, unit: string, data: string}} PackedScores
 * @typedef {{steps: number[], data: string}} PackedTypes
 * @typedef {{start: number, stop: number, category: string, correct: boolean}} Mention
 * @typedef {{start: number, stop: number, category: string, risk: number, doubtful: boolean,
 *   reasons: [string, number][]}} RiskyWord its tokens, and what changed its log-odds
 * @typedef {{layers: number, heads: number, types: PackedTypes, visual?: PackedScores | null,
 *   language?: PackedScores | null, total?: PackedScores | null, contribution?: PackedScores | null,
 *   beta?: PackedScores | null, gamma?: PackedScores | null}} HeadData
 * @typedef {(number | null)[] | null} Series
 * @typedef {{name: string, method: string, model: string, options: Record<string, unknown>, text: string,
 *   tokens: string[] | null, logprobs: Series, risk: Series, entropy: Series, margin: Series, share: Series,
 *   mentions: Mention[], fired: {steps: number, changes: number, reason: string | null} | null,
 *   equilibrium: number | null, refreshed: number[], heads: HeadData | null,
 *   words?: RiskyWord[] | null, alternatives?: [string, number][][] | null, patches?: PatchData | null, verdict?: {text: string, good: boolean} | null}} AnswerRecord
 * @typedef {{source: string, width: number, height: number}} Picture
 * @typedef {{kind: "answer", title: string, prompt: string, notes: string[], images: Picture[],
 *   objects: string[] | null, answers: AnswerRecord[]}} AnswerData
 */

/** The types of heads by their number, with a letter for maps and one line of explanation. */
const TYPES = [
  { code: 2, name: "visual", letter: "V", line: "gets its information mainly from the picture" },
  { code: 3, name: "language", letter: "L", line: "gets its information mainly from the text" },
  { code: 4, name: "synergy", letter: "S", line: "draws on both; these are the heads that HEAL calibrates" },
  { code: 1, name: "information-redundant", letter: "i", line: "carries much less information than other heads" },
  { code: 0, name: "causal-redundant", letter: "c", line: "the layer’s output hardly changes without it" },
  { code: 255, name: "unknown", letter: "?", line: "not analysed" },
];

/** @param {string} text @returns {Uint8Array} */
function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

/**
 * For every step the index of its stored frame.
 * @param {number[]} first @param {number} steps
 */
function framesOf(first, steps) {
  const found = new Uint32Array(steps);
  let at = 0;
  for (let step = 0; step < steps; step++) {
    while (at + 1 < first.length && first[at + 1] <= step) at++;
    found[step] = at;
  }
  return found;
}

/** One value per step and head, decoded where it is read. */
class Scores {
  /** @param {PackedScores} packed @param {number} size heads of all layers @param {number} steps */
  constructor(packed, size, steps) {
    const raw = bytes(packed.data).buffer;
    this.levels = packed.bits === 16 ? new Uint16Array(raw) : new Uint8Array(raw);
    this.low = new Float32Array(bytes(packed.low).buffer);
    this.unit = new Float32Array(bytes(packed.unit).buffer);
    this.frames = framesOf(packed.steps, steps);
    this.missing = 2 ** packed.bits - 1;
    this.size = size;
  }

  /** @param {number} step @param {number} head its index over all layers */
  at(step, head) {
    const level = this.levels[this.frames[step] * this.size + head];
    return level === this.missing ? NaN : this.low[head] + level * this.unit[head];
  }

  /** The lowest and highest value of all heads and steps. */
  get range() {
    let low = Infinity;
    let high = -Infinity;
    for (let head = 0; head < this.size; head++) {
      low = Math.min(low, this.low[head]);
      high = Math.max(high, this.low[head] + (this.missing - 1) * this.unit[head]);
    }
    return [low, high];
  }
}

/** The heads of one answer. */
class Heads {
  /** @param {HeadData} data @param {number} steps */
  constructor(data, steps) {
    this.layers = data.layers;
    this.heads = data.heads;
    this.size = data.layers * data.heads;
    this.steps = steps;
    this.codes = bytes(data.types.data);
    this.firsts = data.types.steps;
    this.frames = framesOf(data.types.steps, steps);
    const read = (/** @type {PackedScores | null | undefined} */ packed) =>
      packed ? new Scores(packed, this.size, steps) : null;
    this.scores = {
      visual: read(data.visual), language: read(data.language), total: read(data.total),
      contribution: read(data.contribution), beta: read(data.beta), gamma: read(data.gamma),
    };
  }

  /** @param {number} step @param {number} head */
  type(step, head) {
    return this.codes[this.frames[step] * this.size + head];
  }

  /** How many heads have each type. @param {number} step @returns {Map<number, number>} */
  counts(step) {
    const found = new Map();
    const first = this.frames[step] * this.size;
    for (let i = first; i < first + this.size; i++) found.set(this.codes[i], (found.get(this.codes[i]) ?? 0) + 1);
    return found;
  }

  /**
   * A measured or derived value; NaN if it was not measured.
   * @param {string} name @param {number} step @param {number} head @returns {number}
   */
  value(name, step, head) {
    const { visual, language, total } = this.scores;
    if (name === "share") {
      const [v, l] = [visual?.at(step, head) ?? NaN, language?.at(step, head) ?? NaN];
      return v > 0 && l > 0 ? v / (v + l) : NaN;
    }
    if (name === "synergy") {
      return visual && language && total
        ? total.at(step, head) - visual.at(step, head) - language.at(step, head)
        : NaN;
    }
    const scores = /** @type {Record<string, Scores | null>} */ (this.scores)[name];
    return scores ? scores.at(step, head) : NaN;
  }

  /** @param {string} name @returns {boolean} */
  has(name) {
    if (name === "type") return true;
    if (name === "share") return Boolean(this.scores.visual && this.scores.language);
    if (name === "synergy") return this.has("share") && Boolean(this.scores.total);
    return Boolean(/** @type {Record<string, Scores | null>} */ (this.scores)[name]);
  }
}

/**
 * Groups tokens to words: the index of the word of every token.
 * @param {string[]} tokens @returns {number[]}
 */
function wordsOf(tokens) {
  const joins = /[\p{L}\p{N}'’-]$/u;
  const joined = /^[\p{L}\p{N}'’-]/u;
  const alone = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;
  let word = -1;
  return tokens.map((token, i) => {
    const before = i ? tokens[i - 1] : "";
    const same = i > 0 && joins.test(before) && joined.test(token) && !alone.test(token);
    if (!same && !(i > 0 && token === "")) word++;
    return Math.max(word, 0);
  });
}

/** A text without tokens in pieces to show. @param {string} text */
function piecesOf(text) {
  return text.match(/\s*[\p{L}\p{M}\p{N}'’-]+|\s*[^\s]|\s+$/gu) ?? [];
}

/**
 * The longest common subsequence of two lists of tokens: for each token of one the index of its partner in the other,
 * or -1.
 * @param {string[]} one @param {string[]} other @returns {[Int32Array, Int32Array]}
 */
function aligned(one, other) {
  const [n, m] = [one.length, other.length];
  const width = m + 1;
  const length = new Uint16Array((n + 1) * width);
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      length[i * width + j] =
        one[i] === other[j]
          ? length[(i + 1) * width + j + 1] + 1
          : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const [a, b] = [new Int32Array(n).fill(-1), new Int32Array(m).fill(-1)];
  let [i, j] = [0, 0];
  while (i < n && j < m) {
    if (one[i] === other[j]) {
      a[i] = j;
      b[j] = i;
      i++;
      j++;
    } else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) i++;
    else j++;
  }
  return [a, b];
}

/** The partner of a token, or of the nearest aligned one before it. @param {Int32Array} partners @param {number} at */
function partnerOf(partners, at) {
  for (let i = at; i >= 0; i--) if (partners[i] >= 0) return partners[i];
  return 0;
}

/** A number with fixed digits. @param {number | null | undefined} value @param {number} digits */
function fixed(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

/** A number for people. @param {number | null | undefined} value @param {number} [digits] */
function shown(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 10 ** -digits / 2 || size >= 1e5) ? value.toExponential(1) : value.toFixed(digits);
  return text.replace("-", "−");
}
