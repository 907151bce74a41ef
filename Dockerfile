# The daemon in a container. It needs the host's network and pid namespaces (hostNetwork, hostPID), CAP_SYS_ADMIN,
# CAP_NET_ADMIN, and these mounts: /var/run/nri, /run/nri-rdma, /sys, /dev/infiniband, /run/udev, and /var/run/netns with
# HostToContainer propagation; for GPUs and shares /var/lib/kubelet/pod-resources, /etc/cdi and /var/run/cdi; for shares also
# /var/lib/kubelet/device-plugins, for claims all of /var/lib/kubelet with HostToContainer propagation; a configuration in /etc/nri-rdma; with containerd before 2.2.6 or 2.3.3 also
# /run/containerd, where containerd_socket is (docs/operations.md, what containerd leaves).
#
# The same image again: `docker build --build-arg BASE=debian:trixie-slim@sha256:...` names the base by its digest (`docker
# buildx imagetools inspect debian:trixie-slim` prints it). pip takes the newest packages that pyproject.toml allows; to
# choose them once, keep the folder of `pip wheel --wheel-dir wheelhouse '.[otlp]'` (made with this base's Python) in the
# checkout, and replace the last RUN of the first stage by
#   RUN python3 -m venv /opt/nri-rdma && /opt/nri-rdma/bin/pip install --no-index --find-links /src/wheelhouse 'nri-rdma[otlp]'
ARG BASE=debian:trixie-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv
COPY . /src
RUN python3 -m venv /opt/nri-rdma && /opt/nri-rdma/bin/pip install --no-cache-dir "/src[otlp]"

FROM ${BASE}
ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nri-rdma" \
      org.opencontainers.image.description="Gives containers their own RDMA hardware: an NRI plugin for containerd and CRI-O" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
# pyverbs, with the drivers' libraries, asks devices for their capacity where pools have shares (docs/adr/0030).
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pyverbs ibverbs-providers \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nri-rdma /opt/nri-rdma
# The guard's hook runs on the host: copy it to /usr/local/lib/nri-rdma there (docs/guard.md).

# There is no USER: the daemon is the host's root. It enters the network namespaces of pods, moves netdevs, and connects to
# sockets that are root's (NRI, containerd, the kubelet). What bounds it is the capabilities above.

# For docker and podman; Kubernetes does not read it (docs/operations.md, probes and monitoring). Settings that the daemon
# has as flags are not known here: give them as NRI_RDMA_* variables.
HEALTHCHECK --interval=30s --timeout=10s --start-period=15s CMD ["/opt/nri-rdma/bin/nri-rdma", "status", "--check"]
ENTRYPOINT ["/opt/nri-rdma/bin/nri-rdma"]
CMD ["run"]
