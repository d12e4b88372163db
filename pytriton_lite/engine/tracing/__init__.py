"""Followers of single requests: who watches, and what is written of a trace."""
