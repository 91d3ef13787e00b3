"""The real opencode from npm, shut in: a home of its own, a stand-in model, and nothing but loopback to reach.

Its packages lie in a cache folder, one version each, put there by `install`. The platform's program is started directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx2

from tests.opencode.model import ModelServer
from tests.processes import until

RACING = "1.14.34"
"""Two prompts for one session from two directories begin two turns there."""
CURRENT = "1.18.33"
VERSIONS = (RACING, CURRENT)
CACHE = Path(os.environ.get("POSTROOM_OPENCODE_CACHE") or Path(__file__).parents[2] / ".cache" / "opencode")
NOWHERE = "http://127.0.0.1:9/"
START_SECONDS = 120.0

_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


def program(version: str) -> Path:
    """Where a version's program is, or would be."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"opencode-linux-{machine}"
    if machine == "x64" and "avx2" not in Path("/proc/cpuinfo").read_text("ascii", "replace"):
        name += "-baseline"
    return CACHE / version / "node_modules" / name / "bin" / "opencode"


def install(version: str) -> None:
    """Fetch one version from npm, without running any of its scripts."""
    if program(version).exists():
        return
    folder = CACHE / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n', "utf-8")
    command = ["npm", "install", f"opencode-ai@{version}", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*command, "--no-update-notifier", "--loglevel=error"], cwd=folder, check=True, timeout=600)
    if not program(version).exists():
        raise SystemExit(f"opencode-ai {version} brought no program for this machine: {program(version)}")


class RealOpencode:
    """One `opencode serve`, from its start to its end; it can be killed and started again on its port and data."""

    def __init__(self, version: str, folder: Path, model: ModelServer, password: str | None = None) -> None:
        self.version = version
        self.password = password
        self.folder = folder
        self.url = ""
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        proof = None if password is None else httpx2.BasicAuth("opencode", password)
        self._client = httpx2.AsyncClient(auth=proof, timeout=30.0, trust_env=False)

    async def start(self, plugin: str | None = None) -> RealOpencode:
        """Stopped -> answering."""
        assert program(self.version).exists(), "opencode is not there: run `make test-clients`"
        for name in ("home", "work", "config", "data", "state", "cache"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "models.json").write_text("{}", "utf-8")
        (self.folder / "opencode.json").write_text(json.dumps(self._config()), "utf-8")
        if plugin is not None:
            there = self.folder / "work" / ".opencode" / "plugin"
            there.mkdir(parents=True, exist_ok=True)
            (there / "postroom.js").write_text(plugin, "utf-8")
        port = self.url.rpartition(":")[2] or "0"
        self._starts += 1
        output = self.folder / f"opencode-{self._starts}.out"
        self._process = self._spawn(port, output)

        def listening() -> str | None:
            assert self._process is not None
            said = output.read_text("utf-8", "replace")
            assert self._process.poll() is None, f"opencode ended at once:\n{said}"
            found = _LISTENING.search(said)
            return found.group(1) if found else None

        self.url = await until(listening, "opencode listens", START_SECONDS)
        return self

    def _spawn(self, port: str, output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as sink:
            return subprocess.Popen(
                [str(program(self.version)), "serve", "--hostname", "127.0.0.1", "--port", port],
                cwd=self.folder / "work",
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def _config(self) -> dict[str, Any]:
        model = {"name": "fake-1", "tool_call": True, "limit": {"context": 200_000, "output": 8_000}}
        options = {"baseURL": f"{self._model.url}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "fake", "options": options, "models": {"fake-1": model}}
        return {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "lsp": False,
            "formatter": False,
            "enabled_providers": ["fake"],
            "provider": {"fake": provider},
            "model": "fake/fake-1",
            "small_model": "fake/fake-1",
        }

    def _environment(self) -> dict[str, str]:
        switches = (
            "MODELS_FETCH",
            "AUTOUPDATE",
            "DEFAULT_PLUGINS",
            "LSP_DOWNLOAD",
            "EMBEDDED_WEB_UI",
            "SHARE",
            "CLAUDE_CODE",
        )
        folder = self.folder
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "OPENCODE_CONFIG": str(folder / "opencode.json"),
            "OPENCODE_MODELS_PATH": str(folder / "models.json"),
            "npm_config_registry": NOWHERE,
            "npm_config_fetch_retries": "0",
            **({} if self.password is None else {"OPENCODE_SERVER_PASSWORD": self.password}),
            **{f"OPENCODE_DISABLE_{switch}": "1" for switch in switches},
        }

    async def session(self, directory: Path | None = None) -> str:
        """A new session in a directory: its id."""
        where = directory or self.folder / "work"
        where.mkdir(exist_ok=True)
        answer = await self._client.post(
            f"{self.url}/session", json={}, headers={"x-opencode-directory": str(where)}, timeout=START_SECONDS
        )
        answer.raise_for_status()
        return str(answer.json()["id"])

    async def prompt(self, session: str, text: str, directory: Path | None = None) -> None:
        """A prompt sent directly, past every courier."""
        where = directory or self.folder / "work"
        where.mkdir(exist_ok=True)
        answer = await self._client.post(
            f"{self.url}/session/{session}/prompt_async",
            json={"parts": [{"type": "text", "text": text}]},
            headers={"x-opencode-directory": str(where)},
        )
        assert answer.status_code == 204, answer.text

    async def messages(self, session: str) -> list[dict[str, Any]]:
        """The session's transcript."""
        answer = await self._client.get(f"{self.url}/session/{session}/message")
        answer.raise_for_status()
        return list(answer.json())

    async def answered(self, session: str) -> list[tuple[str, str | None]]:
        """Each complete answer in order: the id of the message that it answers, and the error it ended in."""
        found = []
        for record in await self.messages(session):
            info = record["info"]
            over = info.get("time", {}).get("completed") or info.get("error")
            if info["role"] == "assistant" and over and info.get("finish") != "tool-calls":
                found.append((info["parentID"], (info.get("error") or {}).get("name")))
        return found

    async def idle(self, session: str) -> bool:
        """Whether no turn runs in the session, whichever directory it was begun in."""
        for where in (self.folder / "work", self.folder / "elsewhere"):
            answer = await self._client.get(f"{self.url}/session/status", headers={"x-opencode-directory": str(where)})
            if session in answer.json():
                return False
        return True

    def kill(self) -> None:
        """Running -> ended, without a chance to put anything in order."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    async def close(self) -> None:
        """End it, and let go of every connection."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        await self._client.aclose()


if __name__ == "__main__":
    for wanted in VERSIONS:
        install(wanted)
