"""Figures about models and the server, and what may wait in them at a time."""
