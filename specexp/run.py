"""Entry point for ``python -m specexp.run``; see :mod:`specexp.commands.run`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("run")
