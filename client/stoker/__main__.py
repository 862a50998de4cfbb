"""``python -m stoker``: the command line."""

from stoker.cli.main import run

if __name__ == "__main__":
    run()
