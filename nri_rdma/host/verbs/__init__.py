"""The only home of pyverbs: a program of the distribution's Python, which opens RDMA devices.

pyverbs belongs to the distribution's Python and is not seen by that of a virtual environment; and while it opens a
device it keeps every other thread of its process waiting. So these modules run as a program of that Python (`program`),
which has none of our packages: they import the standard library, each other, `model.gid` and `decide.gids`. See
docs/adr/0030.
"""
