"""The nouns: data types, tensors, requests, states, errors. Imports numpy and nothing of ours."""
