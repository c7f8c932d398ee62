"""Analyses for each paper's tables and figures: one folder per paper, one file per analysis."""
