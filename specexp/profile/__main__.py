"""``python -m specexp.profile``: the command of :mod:`specexp.profile.command`."""

if __name__ == "__main__":
    from specexp.__main__ import start

    start("profile")
