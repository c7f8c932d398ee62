"""Entry point for ``python -m specexp.why``; see :mod:`specexp.servers.why`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("why")
