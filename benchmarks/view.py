"""The interactive page of a long answer: its size, its loading time, and how fast it answers the pointer.

    python -m benchmarks.view --steps 512 --layers 32 --heads 32 --answers 2

A headless Chromium opens the page. The pointer enters many tokens, one after the other, and the page itself measures
the time until the next frame has been drawn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from heal.view import answer_data, page
from tests.browser.browser import Browser, started
from tests.view.traces import trace

HOVER = """
const done = arguments[arguments.length - 1];
const spans = [...document.querySelectorAll(".tokens")].flatMap((box) => [...box.querySelectorAll(".token")]);
const frame = () => new Promise((drawn) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = drawn;
  port2.postMessage(0);
}));
(async () => {
  const work = [], whole = [];
  for (let i = 0; i < arguments[0]; i++) {
    await frame();
    const start = performance.now();
    const enter = new PointerEvent("pointerover", { bubbles: true, pointerType: "mouse" });
    spans[(i * 97) % spans.length].dispatchEvent(enter);
    work.push(performance.now() - start);
    await frame();
    whole.push(performance.now() - start);
  }
  done([work, whole]);
})();
"""


def measure(browser: Browser, path: Path, hovers: int) -> dict[str, Any]:
    browser.open(path)
    loaded = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    browser.driver.set_script_timeout(300)
    work, whole = (np.array(times) for times in browser.driver.execute_async_script(HOVER, hovers))
    return {
        "load_ms": round(loaded),
        "script_ms": quantiles(work),
        "until_drawn_ms": quantiles(whole),
        "hovers": hovers,
        "chromium": browser.driver.capabilities["browserVersion"],
    }


def quantiles(times: np.ndarray) -> dict[str, float]:
    return {name: round(float(np.quantile(times, q)), 1) for name, q in (("median", 0.5), ("p95", 0.95), ("max", 1))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 512), ("layers", 32), ("heads", 32), ("answers", 1), ("hovers", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    traces = {
        f"answer {i}": trace(steps=given.steps, layers=given.layers, heads=given.heads, seed=i)
        for i in range(given.answers)
    }
    text = page(answer_data(traces, objects=["dog", "car"]))
    with TemporaryDirectory() as folder, started() as browser:
        path = Path(folder) / "page.html"
        path.write_text(text)
        found = measure(browser, path, given.hovers)
    print(json.dumps(vars(given) | {"megabytes": round(len(text) / 1e6, 2)} | found))


if __name__ == "__main__":
    main()
