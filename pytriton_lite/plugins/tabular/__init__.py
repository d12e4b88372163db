"""Backends for models of tables: ``sklearn``, ``xgboost``, ``lightgbm``. Folders whose model.py workers import by path."""
