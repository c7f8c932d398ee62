"""The tables and figures of the four papers, from one command."""
