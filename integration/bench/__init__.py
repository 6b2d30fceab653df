"""The benchmark: ysactor and its peers on one server, each in its own process. ``python -m integration.bench``.

Nothing here is imported by the package. What runs in a contender's process is in ``worker``, and imports that
contender's libraries only: a process that has imported trio-asyncio is a slow asyncio, whoever uses it.
"""
