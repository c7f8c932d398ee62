"""Entry point for ``python -m specexp.what_if``; see :mod:`specexp.replay.advice.what_if`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("what_if")
