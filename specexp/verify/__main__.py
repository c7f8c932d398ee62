"""``python -m specexp.verify``: the command of :mod:`specexp.commands.verify`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("verify")
