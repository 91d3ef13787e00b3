"""What `python3 -q` begins with in the tests: it reads lines at its own prompt, each into a log of JSON lines."""

import json
import os
import readline

readline.parse_and_bind("set enable-bracketed-paste on")
while True:
    try:
        line = input(">>> ")
    except (EOFError, KeyboardInterrupt):
        break
    with open(os.environ["READ_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"submitted": line}) + "\n")
