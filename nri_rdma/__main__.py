"""`python -m nri_rdma` is the command `nri-rdma`."""

from nri_rdma.commands.cli.main import main

main()
