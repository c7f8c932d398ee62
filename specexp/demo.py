"""Entry point for ``python -m specexp.demo``; see :mod:`specexp.commands.demo`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("demo")
