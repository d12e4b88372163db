"""Front ends for two hosting services: the routes that SageMaker and Vertex AI ask a container for.

Each is an application in front of the one of HTTP: it turns a request into one of the protocol's, and the answer back.
"""
