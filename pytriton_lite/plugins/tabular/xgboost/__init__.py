"""The backend ``xgboost``: a folder whose model.py workers import by path. The extra ``xgboost``."""
