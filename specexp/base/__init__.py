"""Utilities that every package imports: checked constructors, messages, start-up, processes, compiled libraries."""
