"""An app in the browser: ask a model about a picture, and look at the answer while it is generated."""

from __future__ import annotations

from heal.extras import optional, require_installed

require_installed("gradio")  # not imported here: it reads its settings from the environment when it is
with optional():
    from heal.app.server import serve

__all__ = ["serve"]
