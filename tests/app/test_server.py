"""The running app without a browser: who may reach it, what it stores, and how it ends."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio")

import httpx

from heal.app.asking import MOST_BYTES
from heal.app.server import HOST, free_port
from heal.errors import ConfigError
from tests.app.running import OUTSIDE, App, running


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(tmp_path_factory.mktemp("app")) as found:
        yield found


@pytest.fixture
def client(app: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.address, trust_env=False, timeout=30) as found:
        yield found


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use: give another one with --port"):
            free_port(port)
    assert free_port(port) == port
    assert free_port(0) > 0


def test_only_this_computer_can_connect(app: App) -> None:
    port = int(app.address.rstrip("/").rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, but tells the address of this computer
            own = probe.getsockname()[0]
        except OSError:
            own = "127.0.0.2"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex((own, port)) != 0
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex((HOST, port)) == 0


def test_pages_of_other_hosts_are_refused(client: httpx.Client) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200
    asked = client.get("/config", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in asked.headers


def test_other_files_cannot_be_read(client: httpx.Client, tmp_path: Path) -> None:
    own = tmp_path / "secret.png"
    own.write_bytes(b"secret")
    for path in (own, Path("/etc/passwd"), Path.cwd() / "pyproject.toml"):
        assert client.get(f"/gradio_api/file={path}").status_code == 403
    assert client.get("/heal/no-such-key/answer.html").status_code == 404


def test_uploads_are_bounded_and_private(app: App, client: httpx.Client) -> None:
    large = client.post("/gradio_api/upload", files={"files": ("large.png", b"x" * (MOST_BYTES + 1))})
    assert large.status_code == 413
    assert client.post("/gradio_api/upload", files={"files": ("small.png", b"x")}).status_code == 200
    own = list(app.folder.iterdir())
    assert [path.name.startswith("heal-app-") for path in own] == [True]
    assert own[0].stat().st_mode & 0o077 == 0


def test_nothing_is_recorded(client: httpx.Client) -> None:
    config = client.get("/config").json()
    assert config["analytics_enabled"] is False
    assert config["run_history"] is False
    assert "fonts.googleapis" not in json.dumps(config) + client.get("/").text + client.get("/theme.css").text
    assert client.get("/monitoring/summary").status_code != 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(app: App, tmp_path: Path, number: int) -> None:
    if number == signal.SIGTERM:
        with running(tmp_path) as other:
            ended(other, number)
    else:
        ended(app, number)


def ended(app: App, number: int) -> None:
    assert app.end(number) == 0
    log = app.log.read_text()
    assert log.splitlines()[-1] == "stopped"
    assert "Traceback" not in log
    assert OUTSIDE not in log
    assert list(app.folder.iterdir()) == []
