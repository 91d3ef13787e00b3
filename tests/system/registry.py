"""A gita registry that gita itself wrote, and repositories in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Gita:
    """gita with a registry of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {"GITA_PROJECT_HOME": str(home)}

    def run(self, *words: str) -> str:
        """One gita command, in the registry's folder."""
        program = Path(sys.executable).with_name("gita")
        done = subprocess.run(
            [str(program), *words],
            cwd=self.home,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def repository(self, path: str) -> Path:
        """A new git repository under the registry's folder, registered."""
        folder = self.home / "work" / path
        folder.mkdir(parents=True)
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True, timeout=60)
        self.run("add", str(folder))
        return folder

    def slugs(self) -> list[str]:
        """The names as gita has them."""
        file = self.home / "gita" / "repos.csv"
        return [line.split(",")[1] for line in file.read_text().splitlines()]
