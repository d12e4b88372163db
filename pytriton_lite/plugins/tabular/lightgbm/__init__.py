"""The backend ``lightgbm``: a folder whose model.py workers import by path. The extra ``lightgbm``."""
