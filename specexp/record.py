"""Entry point for ``python -m specexp.record``; see :mod:`specexp.replay.record`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("record")
