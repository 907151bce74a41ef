# The daemon in a container. It needs the host's network and pid namespaces, CAP_SYS_ADMIN, CAP_NET_ADMIN, and these mounts:
# /var/run/nri, /run/nri-rdma, /sys, /dev/infiniband, and /var/run/netns with HostToContainer propagation; with containerd
# before 2.2.6 or 2.3.3 also /run/containerd, where containerd_socket is (docs/operations.md, what containerd leaves).
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv
COPY . /src
RUN python3 -m venv /opt/nri-rdma && /opt/nri-rdma/bin/pip install --no-cache-dir "/src[otlp]"

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nri-rdma /opt/nri-rdma
# The guard's hook runs on the host: copy it to /usr/local/lib/nri-rdma there (docs/guard.md).
ENTRYPOINT ["/opt/nri-rdma/bin/nri-rdma"]
CMD ["run"]
