"""The code of this project's own evidence, which runs in the root of a checkout; the wheel does not contain it."""
