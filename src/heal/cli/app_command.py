"""`heal app`: a page in the browser to ask a model about pictures."""

from __future__ import annotations

from typing import Annotated

import typer

from heal.cli import common
from heal.cli.output import note, say
from heal.extras import require_installed

PORT = 7860


def app(
    model: common.Model = common.EMBEDDED,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page. 0: any free one.")] = PORT,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Ask a model about pictures in the browser, and look at its answers while they are generated.

    The page is served on this computer only. Ctrl-C ends it.
    """
    require_installed("gradio")  # it is imported when its settings are in the environment
    from heal.app import serve
    from heal.app.server import free_port

    number = free_port(port)
    vlm = common.load(model, dtype, device, allow_incomplete)
    if model == common.EMBEDDED:
        import torch

        torch.set_num_threads(1)  # more threads do not speed up so small a model

    def started(address: str) -> None:
        say(f"page: {address}")
        note("Ctrl-C ends it")
        if open_page:
            import webbrowser

            if not webbrowser.open(address):
                note("no browser could be started: open the address yourself")

    serve(vlm, number, started)
    note("stopped")
