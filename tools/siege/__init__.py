"""Every known attack on a server of this kind, run against a real one while an honest client measures (`make siege`)."""
