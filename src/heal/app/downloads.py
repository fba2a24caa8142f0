"""Downloads: the page and the traces of an answer, made when they are asked for."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from heal.app.markup import PAGE, ROUTE, SUFFIX
from heal.app.sessions import Answered, Sessions
from heal.view import page


def route(sessions: Sessions, folder: Path) -> Route:
    """`/heal/KEY/NAME`. Nobody can guess the key of another user."""

    def download(request: Request) -> Response:
        answered = sessions.answered(request.path_params["key"])
        name = request.path_params["name"]
        found = None if answered is None else content(answered, name, folder)
        if found is None:
            return PlainTextResponse("There is no such answer any more: ask again.", 404)
        kind = "text/html; charset=utf-8" if name == PAGE else "application/octet-stream"
        headers = {"Content-Disposition": "attachment", "Cache-Control": "no-store"}
        return Response(found, media_type=kind, headers=headers)

    return Route(f"/{ROUTE}/{{key}}/{{name}}", download, methods=["GET"])


def content(answered: Answered, name: str, folder: Path) -> bytes | None:
    """The bytes of a file, or None if there is none of this name."""
    if name == PAGE:
        return page(answered.data()).encode("utf-8", "backslashreplace")
    answer = answered.answers.get(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
    if answer is None or answer.trace is None:
        return None
    with TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "trace.safetensors"
        answer.trace.save(path)
        return path.read_bytes()
