"""A prompt_toolkit program: a prompt that takes lines, each into a log of JSON lines. Usage: line_reader.py LOG"""

import json
import sys

from prompt_toolkit import PromptSession

session: PromptSession[str] = PromptSession("> ")
while True:
    try:
        line = session.prompt()
    except (EOFError, KeyboardInterrupt):
        break
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write(json.dumps({"submitted": line}) + "\n")
