"""A daemon of our own in a temporary folder, as a process, for the measurements that go through its doors."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running daemon: its folder, port, process id, admin's token, and how long it took to be ready (seconds)."""

    folder: Path
    port: int
    pid: int
    token: str
    ready_s: float

    @property
    def url(self) -> str:
        """Its address on loopback."""
        return f"http://127.0.0.1:{self.port}"

    def resident_mib(self) -> float:
        """Its resident memory in MiB."""
        return self._status_mib("VmRSS:")

    def peak_mib(self) -> float:
        """The most resident memory in MiB since the peak was forgotten."""
        return self._status_mib("VmHWM:")

    def forget_peak(self) -> None:
        """Let the peak be what is resident now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status_mib(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"no {name} of process {self.pid}")

    def cpu_seconds(self) -> float:
        """The processor time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(
    settings: str = "", database: str | None = None, program: Sequence[str] = ("postroom", "serve")
) -> Iterator[Served]:
    """Start a daemon with these settings (TOML), and stop it in the end; `program` is a module that serves like one."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-bench-"))
    (folder / "postroom.toml").write_text(settings)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("POSTROOM_")}
    command = [sys.executable, "-m", *program, "--data", str(folder), "--port", "0"]
    if database is not None:
        command += ["--database", database]
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the daemon did not start:\n" + (folder / "log").read_text())
        port = int(line.split("127.0.0.1:", 1)[1].split(",")[0])
        while not _ready(port):
            if time.perf_counter() - started > START_SECONDS:
                raise RuntimeError("the daemon was not ready in time:\n" + (folder / "log").read_text())
            time.sleep(0.005)
        took = time.perf_counter() - started
        yield Served(folder, port, process.pid, (folder / "admin-token").read_text().strip(), took)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False
