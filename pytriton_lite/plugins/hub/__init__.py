"""Repositories of the Hugging Face Hub, ``hf://org/name@revision``: a source for the engine. The extra ``hf``."""
