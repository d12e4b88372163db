"""Repositories that lie on other machines, as directories here: copied when they are needed, with fsspec."""
