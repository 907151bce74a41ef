# The image of `make image` (deploy/image), by `docker build`, `podman build` or `buildah bud`: the same files, made by the
# same program of the same locked packages. Nothing of the base comes into it; nothing of its architecture is run. Docker
# needs buildx, which Debian's and Ubuntu's docker.io lacks (apt install docker-buildx): without, "failed to parse platform".
#
#   docker build --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) -t nri-rdma .
#
# A container of it needs the host's network and pid namespaces (hostNetwork, hostPID), CAP_SYS_ADMIN, CAP_NET_ADMIN, and
# these mounts: /var/run/nri, /run/nri-rdma, /sys, /dev/infiniband, /run/udev, and /var/run/netns with HostToContainer
# propagation; for GPUs and shares /var/lib/kubelet/pod-resources, /etc/cdi and /var/run/cdi; for shares also
# /var/lib/kubelet/device-plugins, for claims all of /var/lib/kubelet with HostToContainer propagation; a configuration in
# /etc/nri-rdma; with containerd before 2.2.6 or 2.3.3 also /run/containerd, where containerd_socket is
# (docs/operations.md, what containerd leaves).
ARG BASE=debian:trixie-slim

FROM --platform=${BUILDPLATFORM} ${BASE} AS build
ARG TARGETARCH
ARG REVISION=unknown
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
WORKDIR /src
COPY . .
RUN python3 -m venv /venv && /venv/bin/python -m deploy.image --tree /image --arch "${TARGETARCH}" --revision "${REVISION}"

FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nri-rdma" \
      org.opencontainers.image.description="Gives containers their own RDMA hardware" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
# There is no USER: the daemon is the host's root. It enters the network namespaces of pods, moves netdevs, and connects to
# sockets that are root's (NRI, containerd, the kubelet). What bounds it is its capabilities.
ENV PATH=/opt/nri-rdma/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
ENTRYPOINT ["/opt/nri-rdma/bin/nri-rdma"]
CMD ["run"]
