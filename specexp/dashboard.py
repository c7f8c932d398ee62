"""Entry point for ``python -m specexp.dashboard``; see :mod:`specexp.commands.dashboard`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("dashboard")
