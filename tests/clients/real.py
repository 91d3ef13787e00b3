"""Claude Code and Codex from npm, shut in: never logged in, never prompted, a home of their own, loopback alone to reach.

Their packages lie in a cache folder, one version each, put there by `install`. The platform's program is started directly.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("POSTROOM_CLIENTS_CACHE") or Path(__file__).parents[2] / ".cache" / "clients")
SECONDS: Final = 120.0
NOWHERE: Final = "http://127.0.0.1:9/"


@dataclass(frozen=True, slots=True)
class Package:
    """A client's package: its name and version, and where in the platform's own package its program is."""

    client: str
    name: str
    version: str
    inside: str

    @property
    def program(self) -> Path:
        """Where its program is, or would be."""
        machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        own = self.inside.format(machine=machine, triple=f"{platform.machine()}-unknown-linux-musl")
        return self.folder / "node_modules" / f"{self.name}-linux-{machine}" / own

    @property
    def folder(self) -> Path:
        """Where npm puts it."""
        return CACHE / self.client / self.version

    def install(self) -> None:
        """Fetch it from npm, without running any of its scripts."""
        if self.program.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "package.json").write_text('{"private": true}\n', "utf-8")
        command = ["npm", "install", f"{self.name}@{self.version}", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run([*command, "--no-update-notifier", "--loglevel=error"], cwd=self.folder, check=True, timeout=600)
        if not self.program.exists():
            raise SystemExit(f"{self.name} {self.version} brought no program for this machine: {self.program}")


CLAUDE: Final = Package("claude-code", "@anthropic-ai/claude-code", "2.1.332", "claude")
CODEX: Final = Package("codex", "@openai/codex", "0.171.0", "vendor/{triple}/bin/codex")
PACKAGES: Final = (CLAUDE, CODEX)


class Home:
    """One user's home, in which the clients and `postroom setup` are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            **{f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
            # Claude Code says nothing to anybody, and stays as it is.
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Neither does opencode.
            "OPENCODE_MODELS_PATH": str(folder / "models.json"),
            **{
                f"OPENCODE_DISABLE_{switch}": "1"
                for switch in ("MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "SHARE", "CLAUDE_CODE")
            },
            "npm_config_registry": NOWHERE,
            "npm_config_fetch_retries": "0",
        }
        for one in (self.work, folder / ".codex"):
            one.mkdir(parents=True)
        (folder / "models.json").write_text(json.dumps({}), "utf-8")

    def run(self, *command: str | Path, **environ: str) -> str:
        """What a command says on stdout, once it has succeeded; it is run in the project."""
        done = self.tried(*command, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def tried(self, *command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command that was run in the project, whatever came of it."""
        program = Path(command[0])
        assert not program.is_absolute() or program.exists(), f"{program} is not there: run `make test-clients`"
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.work,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


if __name__ == "__main__":
    for wanted in PACKAGES:
        wanted.install()
