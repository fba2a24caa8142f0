"""The app as users start it: its own process, which reports every connection that leaves the computer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OUTSIDE = "connected to the outside: "
PROGRAM = f"""
import sys

def watch(event, arguments):
    address = arguments[1] if event == "socket.connect" else arguments[0] if event == "socket.getaddrinfo" else None
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(host, bytes):
        host = host.decode()
    if isinstance(host, str) and not host.startswith("/") and host not in ("", "127.0.0.1", "::1", "localhost"):
        print({OUTSIDE!r} + host, file=sys.stderr, flush=True)

sys.addaudithook(watch)
from heal.cli import main
main()
"""


@dataclass
class App:
    address: str
    process: subprocess.Popen[str]
    folder: Path
    """Where temporary files go."""
    log: Path
    """What was written on standard error."""

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def running(place: Path, *options: str) -> Iterator[App]:
    """`heal app --port 0` with the embedded model."""
    folder, log = place / "tmp", place / "stderr.txt"
    folder.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADIO")}
    environment |= {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "HTTP_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", PROGRAM, "app", "--port", "0", *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("page: http://127.0.0.1:"), line + log.read_text()
            yield App(line.split()[1], process, folder, log)
        finally:
            process.kill()
            process.wait()
