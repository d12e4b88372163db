"""Models of the repositories: which there are, how they come and go."""
