"""Entry point for ``python -m specexp.doctor``; see :mod:`specexp.commands.doctor`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("doctor")
