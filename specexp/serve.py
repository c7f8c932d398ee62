"""Entry point for ``python -m specexp.serve``; see :mod:`specexp.deploy.server`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("serve")
