"""``python -m specexp.doctor``: the command of :mod:`specexp.commands.doctor`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("doctor")
