"""Entry point for ``python -m specexp.export``; see :mod:`specexp.deploy.export`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("export")
