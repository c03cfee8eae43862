"""The command line: one file per verb. A verb's module is imported when the verb is asked for, and
imports what it needs when it runs, so that every verb starts at once."""

import gc

__all__ = ["main"]

COLLECT_AFTER_OBJECTS = 50_000  # starting makes many objects and hardly any garbage


def main() -> None:
    """The `headrace` command. Exits with a code of `headrace.cli.exits`."""
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    from headrace.cli.app import run

    run()
