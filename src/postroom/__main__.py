"""`python -m postroom` is the `postroom` command."""

from postroom.doors.cli.main import run

if __name__ == "__main__":
    run()
