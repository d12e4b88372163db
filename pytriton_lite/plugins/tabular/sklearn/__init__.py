"""The backend ``sklearn``: a folder whose model.py workers import by path. The extra ``sklearn``."""
