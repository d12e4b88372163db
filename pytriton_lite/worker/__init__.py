"""What runs in a model's own process, under the model's interpreter: stdlib, numpy, core and ipc. Started by path."""
