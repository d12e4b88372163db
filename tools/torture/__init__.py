"""Random faults at random moments in a server under load of every kind, and an audit of what became of every request."""
