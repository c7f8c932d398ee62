"""Entry point for ``python -m specexp.init``; see :mod:`specexp.commands.init`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("init")
