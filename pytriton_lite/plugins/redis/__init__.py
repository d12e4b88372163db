"""The response cache in a Redis server: the extra ``redis``."""
