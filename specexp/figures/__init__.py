"""Pictures that several layers draw."""
