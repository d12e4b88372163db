"""Python-based backends that come with the server: one folder each, whose model.py workers import by path."""
