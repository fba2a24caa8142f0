"""The page: its parts and what happens when they are used."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import gradio as gr

from heal.app import markup
from heal.app.answering import Answerer, Progress
from heal.app.asking import LONGEST_INTERVAL, MOST_SIGNS, MOST_TOKENS, picture_of
from heal.app.sessions import Sessions
from heal.detect.words import finder
from heal.errors import HealError
from heal.studies.objects import PROMPT
from heal.view import component

SHOW_ANSWER = """() => {
  if (innerWidth < 700) document.querySelector("#status").scrollIntoView({behavior: "smooth"});
}"""
"""On a narrow window the answer is below the options."""
SWEEP, AGE = 300, 3600
"""Every so many seconds, uploads older than this are deleted."""
MOST_WAITING = 16
"""Questions that wait. More are refused."""
HEIGHT = 900
"""Of the view, in pixels."""
TOKENS = 128
EXAMPLES = "<p>Natural scenes, and counter scenes, which contradict what the model expects:</p>"
WAITING = Progress("Waiting for the model …")
FULL = Progress(f"{MOST_WAITING} questions are waiting already: ask again later", failed=True)
ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "undocumented"}


def theme() -> gr.themes.Default:
    """Fonts of the system: nothing is fetched."""
    fonts = [gr.themes.Font(name) for name in ("system-ui", "Segoe UI", "Roboto", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "monospace")]
    found = gr.themes.Default(primary_hue="blue", secondary_hue="blue", font=fonts, font_mono=mono)
    # the colours of the theme have too little contrast
    return found.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
    )


class Page:
    """The components of the page, with the functions behind them."""

    def __init__(self, answerer: Answerer, sessions: Sessions) -> None:
        self.answerer, self.sessions = answerer, sessions
        self.find = finder(answerer.detector.words) if answerer.detector else finder(_words(answerer))
        self.examples = [str(path) for path in answerer.examples.write(answerer.folder / "examples")]
        with gr.Blocks(title="heal", analytics_enabled=False, delete_cache=(SWEEP, AGE)) as self.blocks:
            gr.HTML(_head(answerer), elem_id="head")
            with gr.Row(equal_height=False):
                with gr.Column(scale=4, min_width=300):
                    self._inputs()
                with gr.Column(scale=7, min_width=300):
                    self.status = gr.HTML(elem_id="status")
                    self.live = gr.HTML(elem_id="live")
            self.links = gr.HTML(elem_id="links")
            self.view = gr.HTML(elem_id="view")
            self._events()
        self.blocks.queue(max_size=2 * MOST_WAITING, default_concurrency_limit=1, api_open=False)

    # ── components ────────────────────────────────────────────────────────────────────────────────────

    def _inputs(self) -> None:
        self.picture = gr.Image(
            label="Picture",
            type="filepath",
            image_mode=None,
            sources=["upload", "clipboard"],
            buttons=[],
            height=260,
            elem_id="picture",
        )
        if self.examples:
            gr.HTML(EXAMPLES, elem_classes="heal-note")
            labels = [one.label for one in self.answerer.examples.all]
            self.gallery = gr.Gallery(
                list(zip(self.examples, labels, strict=True)),
                label="Examples",
                show_label=False,
                columns=4,
                height="auto",
                object_fit="contain",
                allow_preview=False,
                interactive=False,
                buttons=[],
                format="png",
                elem_id="examples",
            )
        self.question = gr.Textbox(
            PROMPT, label="Question", lines=2, max_lines=6, max_length=MOST_SIGNS, elem_id="question"
        )
        self.method = gr.Dropdown(list(self.answerer.names), value="heal", label="Method", elem_id="method")
        with gr.Row():
            self.ask = gr.Button("Ask", variant="primary", scale=2, min_width=60, elem_id="ask")
            self.both = gr.Button("Compare with plain", scale=3, min_width=60, elem_id="compare")
            self.stop = gr.Button("Stop", scale=2, min_width=60, interactive=False, elem_id="stop")
        alpha, one_sided = self.answerer.suggested
        self.alpha = gr.Slider(
            0.05,
            0.95,
            alpha,
            step=0.05,
            label="α",
            info="HEAL: target visual share of synergy heads",
            elem_id="alpha",
        )
        self.interval = gr.Slider(
            1, LONGEST_INTERVAL, 10, step=1, label="Interval", info="HEAL: tokens between refreshes of the head types"
        )
        self.one_sided = gr.Checkbox(
            one_sided, label="One-sided", info="HEAL: leave heads that are more visual than α alone"
        )
        self.length = gr.Slider(8, MOST_TOKENS, TOKENS, step=1, label="Length", info="Maximum number of tokens")

    def _events(self) -> None:
        inputs = [
            self.picture, self.question, self.method, self.alpha, self.interval, self.one_sided, self.length,
        ]  # fmt: skip
        shown, buttons = [self.status, self.live, self.links, self.view], [self.ask, self.both, self.stop]
        for button, answer in ((self.ask, self._answer), (self.both, self._compare)):
            button.click(None, js=SHOW_ANSWER)
            asked = button.click(self._asked, None, [*buttons, *shown], **AT_ONCE)
            asked.failure(self._refused, None, [self.status], **AT_ONCE)
            done = asked.success(
                answer,
                inputs,
                shown,
                preprocess=False,
                show_progress="minimal",
                show_progress_on=self.status,
                api_visibility="undocumented",
                **ONE_AT_A_TIME,
            )
            done.then(self._ended, None, buttons, **AT_ONCE)
        self.stop.click(self._stop, None, None, **AT_ONCE)
        self.picture.upload(self._uploaded, [self.picture], [self.picture, self.status], preprocess=False, **AT_ONCE)
        self.method.change(self._chosen, [self.method], [self.alpha, self.interval, self.one_sided], **AT_ONCE)
        if self.examples:
            self.gallery.select(self._example, None, [self.picture, self.status], **AT_ONCE)
        self.blocks.unload(self._left)

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────

    def _asked(self, request: gr.Request) -> list[Any]:
        if self.sessions.waiting >= MOST_WAITING:
            raise gr.Error(FULL.message, print_exception=False)
        self.sessions.of(str(request.session_hash)).ask()
        locked = gr.update(interactive=False)
        return [locked, locked, gr.update(interactive=True), markup.status(WAITING), "", "", ""]

    def _refused(self) -> str:
        return markup.status(FULL)

    def _ended(self) -> list[Any]:
        free = gr.update(interactive=True)
        return [free, free, gr.update(interactive=False)]

    def _answer(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        yield from self._answers(request, values, compare=False)

    def _compare(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        yield from self._answers(request, values, compare=True)

    def _answers(self, request: gr.Request, values: tuple[Any, ...], compare: bool) -> Iterator[list[Any]]:
        session = self.sessions.of(str(request.session_hash))
        for progress in self.answerer.answers(session, values, compare):
            found = progress.answered
            ending = ["", ""]
            if found is not None:
                ending = [markup.links(found), component(found.data(small=True), HEIGHT)]
            yield [markup.status(progress), markup.live(progress, self.find), *ending]

    def _stop(self, request: gr.Request) -> None:
        self.sessions.of(str(request.session_hash)).stop()

    def _left(self, request: gr.Request) -> None:
        self.sessions.leave(str(request.session_hash))

    def _uploaded(self, picture: Any) -> list[Any]:
        """Say at once if a picture cannot be used."""
        try:
            picture_of(picture, self.answerer.folder)
        except HealError as error:
            return [None, markup.status(Progress(str(error), failed=True))]
        return [gr.skip(), ""]

    def _example(self, event: gr.SelectData) -> list[Any]:
        return [self.examples[int(event.index)], ""]

    def _chosen(self, method: str) -> list[Any]:
        """The options of HEAL are of no use to other methods."""
        return [gr.update(interactive="heal" in str(method).split("+"))] * 3


def _head(answerer: Answerer) -> str:
    vlm = answerer.vlm
    shade = "risk of object words" if answerer.detector else "visual share of the synergy heads (no detector)"
    return (
        f"<h1>heal</h1><p>{html.escape(vlm.name)} on {html.escape(str(vlm.device))} · shading: {shade} · "
        "everything stays on this computer</p>"
    )


def _words(answerer: Answerer) -> str:
    return "world" if answerer.examples.all else "coco"
