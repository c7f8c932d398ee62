"""``python -m specexp.export``: the command of :mod:`specexp.deploy.export`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("export")
