"""Shared fixtures of tests: records and outcomes made by hand, small models, fake servers, databases, clusters."""
