"""Entry point for ``python -m specexp.fit``; see :mod:`specexp.fit.command`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("fit")
