"""Response caches, and what is kept in them."""
