"""The only modules that use pyverbs. They run as a program of the distribution's Python and open RDMA devices.

pyverbs is installed for the distribution's Python, so a virtual environment does not have it; and opening a device
blocks all threads of the process. So these modules run in another process, whose main module is `program`. Its Python
lacks our packages: the modules import only the standard library, each other, `model.gid` and `decide.gids`. See
docs/adr/0030.
"""
