"""The server: on the loopback interface, without telemetry, with a private folder that is removed at the end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from heal.app.answering import Answerer
from heal.app.asking import MOST_BYTES
from heal.app.downloads import route
from heal.app.sessions import MOST, Sessions
from heal.errors import ConfigError, HealError
from heal.vlm import VLM

STYLE = Path(__file__).with_name("app.css")
HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
"""Names that requests may use: a page of another name cannot reach the app through a browser."""
SETTINGS = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}


def free_port(port: int) -> int:
    """The port if it can be used, or any free one for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} {reason}: give another one with --port") from error
        return int(probe.getsockname()[1])


def serve(vlm: VLM, port: int, started: Callable[[str], Any]) -> None:
    """Run the app until it is interrupted. `started` is called with its address."""
    with TemporaryDirectory(prefix="heal-app-") as name, _environment(Path(name)), _interruptible():
        from heal.app.page import Page, theme

        folder, sessions = Path(name).resolve(), Sessions()
        answerer = Answerer(vlm, folder)
        blocks = Page(answerer, sessions).blocks
        app_kwargs = {
            "routes": [route(sessions, folder)],
            "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        }
        try:
            _launch(blocks, free_port(port), folder, theme=theme(), css_paths=STYLE, app_kwargs=app_kwargs)
            started(blocks.local_url)
            threading.Thread(target=_warm, args=(answerer,), name="heal-warm", daemon=True).start()
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass
        finally:
            sessions.close()
            blocks.close(verbose=False)


def _launch(blocks: Any, port: int, folder: Path, **page: Any) -> None:
    blocks.launch(
        server_name=HOST,
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        inbrowser=False,
        show_error=False,
        max_file_size=MOST_BYTES,
        state_session_capacity=MOST,
        allowed_paths=[str(folder / "examples")],
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        num_workers=0,
        **page,
    )


def _warm(answerer: Answerer) -> None:
    with suppress(HealError):
        answerer.warm()


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Settings that gradio reads from the environment."""
    local = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *HOSTS]))
    wanted = SETTINGS | {"GRADIO_TEMP_DIR": str(folder), "NO_PROXY": local, "no_proxy": local}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _interruptible() -> Iterator[None]:
    """A request to terminate ends like Ctrl-C, so that the folder is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
