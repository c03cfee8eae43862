"""The command line: one file per verb. Verbs import what they need when they run, so that
`headrace --help` stays quick."""

__all__ = ["main"]


def main() -> None:
    """The `headrace` command. Exits with a code of `headrace.cli.exits`."""
    from headrace.cli.app import run

    run()
