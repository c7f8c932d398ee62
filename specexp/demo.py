"""``python -m specexp.demo``: the command of :mod:`specexp.commands.demo`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("demo")
