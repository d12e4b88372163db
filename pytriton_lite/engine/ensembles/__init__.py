"""Versions that are made of others."""
