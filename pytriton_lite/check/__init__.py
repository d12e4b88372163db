"""``pytriton-lite check REPOSITORY``: what is wrong with the models of repositories, without serving them.

No code of a model is executed. `command` is the door.
"""
