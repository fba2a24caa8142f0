"""Judge replies on every level: text, response, headers, stored reply."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import Any
from unittest import mock

import httpx

from heal.bench.tasks import judge as judging
from heal.bench.tasks.judge import Judge, JudgeOptions
from heal.bench.tasks.judged import Prompt
from heal.bench.tasks.llava_bench import scores
from heal.bench.tasks.mmhal import rating
from tests.fuzz import odd
from tests.fuzz.oracle import Draw, check, is_amount

PIECES = (
    "Rating: 4", "rating: 0", "RATING: 6", "Rating: 10", "Rating: 3.5", "Rating: -1", "Rating: 7", "**Rating:** 5",
    "Rating 5", "Rating:5", "rating: 4, good", "- Rating: 2\n", "8 9", "8, 9", "8/10 9/10", "10 10", "11 3",
    "-1 5", "nan 5", "inf inf", "1e1 2", "1_0 5", "٨ ٩", "8 9 7", "8", "", "\n8 9",
    "Assistant 1: 8\nAssistant 2: 9", "8.5 9.25", "I cannot rate this.", "\x1b[31m", "😀",
)  # fmt: skip


def replies(draw: Draw) -> None:
    """A parsed rating is valid and occurs in the reply."""
    reply = draw.choice((" ", "\n", "")).join(
        draw.choice(PIECES) if draw.often(0.85) else odd.text(draw) for _ in range(draw.randint(1, 3))
    )
    draw.show(reply)
    found = rating(reply)
    check(found is None or found in range(7), f"a rating of {found}")
    written = set(re.findall(r"rating: (-?[\d.]*\d)", reply.lower()))
    check(found is None or written == {str(found)}, f"parsed as {found}, but the reply has {sorted(written)}")
    pair = scores(reply)  # or the error
    check(not isinstance(pair, tuple) or all(is_amount(x) and x <= 10 for x in pair), f"scores {pair}")


def options(draw: Draw) -> None:
    names = (
        "model",
        "base_url",
        "key",
        "attempts",
        "backoff",
        "longest",
        "per_minute",
        "timeout",
        "temperature",
        "max_tokens",
    )
    given: dict[str, Any] = {"model": "m", "base_url": "http://x"}
    given |= {draw.choice(names): odd.value(draw) for _ in range(draw.randint(1, 2))}
    draw.show(f"Judge(JudgeOptions(**{given!r}))")
    made = JudgeOptions(**given)
    with Judge(made, draw.place / "judge") as judge:
        judge.stored.place(Prompt("s", "t"))
    check(isinstance(made.attempts, int) and made.attempts >= 1, "no attempts")
    for name in ("backoff", "longest", "timeout"):
        check(is_amount(getattr(made, name)), f"{name} is {getattr(made, name)!r}")


def responses(draw: Draw) -> None:
    """Any response gives a text or an error, and no pause exceeds the limit."""
    good = {"choices": [{"message": {"role": "assistant", "content": "Rating: 4"}, "finish_reason": "stop"}]}
    sent = []
    for _ in range(3):
        body = odd.mutate_document(draw, good, False).content if draw.often(0.8) else odd.dump(good, False)
        status = draw.choice((200, 200, 200, 429, 500, 503, 400, 401, 404, 204, 302, 529))
        after = draw.choice(("", "1", "nan", "inf", "-5", "1e400", "Wed, 21 Oct 2026 07:28:00 GMT", "x", "9" * 400))
        sent.append((status, body, {"retry-after": after} if after else {}))
    draw.show(sent)
    turns = iter(sent * 9)

    def answer(request: httpx.Request) -> httpx.Response:
        if draw.often(0.1):
            raise draw.choice(
                (httpx.ConnectError("gone"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("odd"))
            )
        status, body, headers = next(turns)
        return httpx.Response(status, stream=httpx.ByteStream(body), headers=headers)

    pauses: list[float] = []
    client = partial(httpx.Client, transport=httpx.MockTransport(answer))
    asked = JudgeOptions("m", "http://judge.invalid", attempts=3, longest=20.0)
    with (
        mock.patch.object(judging.httpx, "Client", client),
        Judge(asked, draw.place / "judge", pauses.append) as judge,
    ):
        reply = judge(Prompt("system", "text"))
        check(all(math.isfinite(p) and 0 <= p <= 20 for p in pauses), f"a pause of {pauses} s")
        check((reply.text is None) == bool(reply.error), "neither text nor error, or both")
        check(reply.text is None or (isinstance(reply.text, str) and reply.text.strip()), "an empty reply")
        again = judge(Prompt("system", "text")) if reply.text is not None else None
        check(again is None or (again.cached and again.text == reply.text), "the stored reply is different")


def stored_replies(draw: Draw) -> None:
    """A damaged stored reply is requested again and never used."""
    good = {"choices": [{"message": {"role": "assistant", "content": "fresh"}, "finish_reason": "stop"}]}
    client = partial(
        httpx.Client,
        transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(odd.dump(good, False)))),
    )
    prompt, asked = Prompt("system", "text"), JudgeOptions("m", "http://judge.invalid", attempts=1)
    with (
        mock.patch.object(judging.httpx, "Client", client),
        Judge(asked, draw.place / "judge", lambda _: None) as judge,
    ):
        judge(prompt)
        path = judge.stored.place(prompt)
        assert path is not None
        mutated = odd.mutate_document(draw, json.loads(path.read_text()), False)
        path.write_bytes(mutated.content)
        draw.show(mutated.how)
        reply = judge(prompt)
        if mutated.change == "structure":
            check(reply.text == "fresh", f"a damaged reply was used: {reply.text!r}")
