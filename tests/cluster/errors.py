"""What the cluster itself could not do."""


class ClusterError(Exception):
    """A sentence for who started the cluster: what failed, where, and what to do next."""
