"""Model versions that serve: what they accept, where it waits, where it goes, what becomes of it."""
