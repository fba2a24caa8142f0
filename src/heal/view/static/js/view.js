// The page: reads the data, builds a view for each object, and switches the theme.

/** @param {{redraw: () => void}[]} views */
function themeButton(views) {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme === "auto" ? dark.matches : root.dataset.theme === "dark");
  const button = h("button", { type: "button", class: "theme no-print" });
  const name = () => {
    button.textContent = isDark() ? "light" : "dark";
    button.setAttribute("aria-label", `switch to ${isDark() ? "light" : "dark"} colours`);
  };
  const redraw = () => views.forEach((view) => view.redraw());
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  dark.addEventListener("change", () => {
    name();
    redraw();
  });
  let before = root.dataset.theme;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = before;
    redraw();
  });
  name();
  return button;
}

function helpBox() {
  const keys = [
    ["← →", "previous, next token (in a text)"], ["n p", "next, previous object name"], ["↑ ↓", "the same place in the other answer"],
    ["Home End", "first, last token"], ["space", "play"], ["← → ↑ ↓", "choose a head (in a map)"],
  ];
  const list = keys.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]);
  return h("details", { class: "help no-print" }, h("summary", {}, "help"),
    h("div", { class: "help-text" },
      h("p", {}, "Move over a word to look at it, click to stay there. Tab reaches every control."),
      h("dl", {}, ...list),
      h("p", {}, "✕ and a wavy line: an object that the picture does not show. A thin box: tokens that the other answer lacks.")));
}

/** @param {any} data */
function viewOf(data) {
  if (data.kind === "run") return new RunView(data);
  return data.kind === "summary" ? new SummaryView(data) : new AnswerView(data);
}

function main() {
  const root = document.getElementById("view");
  const data = /** @type {any[]} */ (JSON.parse(document.getElementById("data")?.textContent ?? "[]"));
  if (!root) return;
  const views = data.map(viewOf);
  views.forEach((view, i) => {
    const model = data[i].kind === "answer" ? data[i].answers[0]?.model : "";
    const notes = (data[i].notes ?? []).map((/** @type {string} */ line) => h("p", { class: "lead" }, line));
    const tools = i === 0 ? h("div", { class: "page-tools" }, helpBox(), themeButton(views)) : null;
    root.append(h("header", { class: "page-head" },
      h("div", {}, h("p", { class: "kicker" }, `heal · ${data[i].kind}${model ? ` · ${model}` : ""}`),
        h(i === 0 ? "h1" : "h2", {}, data[i].title), ...notes), tools));
    root.append(view.element);
  });
}

main();
