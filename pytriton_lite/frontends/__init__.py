"""Protocols to core nouns and back. The packages inside do not know each other."""
