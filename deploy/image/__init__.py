"""The image, made of locked Debian packages and locked wheels: no Dockerfile, registry, daemon or base image is needed.

Everything is in one relocatable folder, /opt/nri-rdma. Nothing of the image's architecture is run to make it.
"""
