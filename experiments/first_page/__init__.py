"""The README's figures and pictures, all from one run on one machine: ``python -m experiments.first_page``."""
