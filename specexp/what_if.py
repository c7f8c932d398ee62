"""``python -m specexp.what_if``: the command of :mod:`specexp.replay.advice.what_if`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("what_if")
