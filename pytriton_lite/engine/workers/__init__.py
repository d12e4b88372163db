"""Workers of a model: their processes, their memory, and the instances that keep one running."""
