"""``python -m specexp.sweep``: the command of :mod:`specexp.sweep.command`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("sweep")
