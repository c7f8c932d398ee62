"""Entry point for ``python -m specexp.results``; see :mod:`specexp.commands.results`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("results")
