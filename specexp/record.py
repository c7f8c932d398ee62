"""``python -m specexp.record``: the command of :mod:`specexp.replay.record`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("record")
