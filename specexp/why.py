"""``python -m specexp.why``: the command of :mod:`specexp.commands.why`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("why")
