"""Names: typos are reported at once with a hint, cached models need no network, and a silent hub times out."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from heal import VLM, hub
from heal.errors import CheckpointError
from heal.hub import located
from tests.vlm.asking import ask


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any request to the hub fails the test."""

    def asked(name: str) -> None:
        raise AssertionError(f"the hub was asked for {name}")

    monkeypatch.setattr(hub, "_reach", asked)


@contextlib.contextmanager
def server(reply: bytes | None) -> Iterator[str]:
    """A hub that sends this response, or accepts the connection and stays silent."""
    held, listening = [], socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                held.append(connection)
                if reply is not None:
                    connection.recv(4096)
                    connection.sendall(reply)
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        for connection in held:
            connection.close()


# ── typos ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("models/llava", "models/qwen", "deep/er/llava-7b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("modles/llava", "models/llava"),
        ("models/lava", "models/llava"),
        ("models/llava2", "models/llava"),
        ("./modles/llava", "models/llava"),
        ("models/llava-13b/", None),
        ("deep/er/lava-7b", "deep/er/llava-7b"),
        ("deep/err/llava-7b/", "deep/er/llava-7b"),
        ("models\\llava", None),
        ("~/no/such/place", None),
        ("/no/such/place", None),
        ("nothing/like/it", None),
        ("embeded", "embedded"),
        ("randon", "random"),
    ],
)
def test_typos_are_reported_at_once(models: Path, no_hub: None, name: str, meant: str | None) -> None:
    message = "there is no checkpoint at " + (f".*did you mean {meant}[?]" if meant else "")
    with pytest.raises(CheckpointError, match=message):
        located(name)


@pytest.mark.parametrize("name", ["", "  ", "a b/c", "a/b.", "-a/b", "a" * 200, "bad\0name", "org/na\nme"])
def test_names_that_do_not_exist(no_hub: None, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"neither a folder nor a name on the hub|not a checkpoint") as caught:
        located(name)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_name_without_similar_folders_goes_to_the_hub(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hub, "_reach", asked.append)
    for name in ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2-VL-7B-Instruct", "gpt2"):
        assert located(name) == (name, False)
    assert asked == ["llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2-VL-7B-Instruct", "gpt2"]


def test_home_is_expanded(vlm: VLM, tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    vlm.model.save_pretrained(tmp_path / "mine")
    assert located("~/mine") == (str(tmp_path / "mine"), True)


# ── the hub ───────────────────────────────────────────────────────────────────────────────────────────────


def refused(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(CheckpointError, match="neither a folder nor complete in the local cache") as caught:
        VLM.load("no-such-org/no-such-model")
    return str(caught.value)


def test_a_silent_hub_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * hub.PATIENCE < 10  # the maximum time
    monkeypatch.setattr(hub, "PATIENCE", 0.4)
    with server(None) as endpoint:
        said = refused(monkeypatch, endpoint)
    assert f"the hub at {endpoint} does not answer" in said


def test_a_very_slow_hub_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives in time, but the response never completes."""
    monkeypatch.setattr(hub, "PATIENCE", 0.3)
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            while not ended.wait(0.1):
                connection.sendall(b"H")

    threading.Thread(target=drip, daemon=True).start()
    said = refused(monkeypatch, f"http://127.0.0.1:{listening.getsockname()[1]}")
    ended.set()
    listening.close()
    assert "does not answer" in said


def test_absent_and_broken_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert "refused" in refused(monkeypatch, endpoint)
    with server(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as endpoint:
        assert "HTTP 503" in refused(monkeypatch, endpoint)


def test_a_hub_that_answers_is_used_by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        assert located("no-such-org/no-such-model") == ("no-such-org/no-such-model", False)


def test_offline_mode_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_ask", None)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE disables the hub"):
        VLM.load("no-such-org/no-such-model")


def test_cached_model_needs_no_hub(vlm: VLM, empty_cache: Path, no_hub: None) -> None:
    home = empty_cache / "models--some-org--tiny"
    snapshot = home / "snapshots" / ("0" * 40)
    vlm.model.save_pretrained(snapshot)
    assert not hub.cached("some-org/tiny")
    vlm.processor.save_pretrained(snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    assert hub.cached("some-org/tiny")
    loaded = VLM.load("some-org/tiny")
    assert (loaded.name, ask(loaded).token_ids) == ("some-org/tiny", ask(vlm).token_ids)
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    )
    assert not hub.cached("some-org/tiny")
