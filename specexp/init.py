"""``python -m specexp.init``: the command of :mod:`specexp.commands.init`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("init")
