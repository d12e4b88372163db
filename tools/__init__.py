"""Commands for those who work on the server; nothing here is installed."""
