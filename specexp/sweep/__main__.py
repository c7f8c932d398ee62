"""Entry point of ``python -m specexp.sweep``; see :mod:`specexp.sweep.command`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("sweep")
