# Images of the operator and of the agent, one target each. `make images` makes their context (dist/image) and builds both.

# Debian with Node.js 24 as /usr/local/bin/node.
ARG BASE=docker.io/library/node:24-bookworm-slim
FROM ${BASE} AS base

FROM base AS operator-files
RUN --mount=type=bind,target=/context sh /context/operator-files.sh /files

# Node.js, the libraries that it loads, and the operator: no shell, no package manager, nothing that is written to.
FROM scratch AS operator
COPY --from=operator-files /files /
COPY LICENSE sbom.cdx.json operator.mjs /opt/berth/
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 8081 8443
ENTRYPOINT ["/usr/local/bin/node", "/opt/berth/operator.mjs"]
CMD ["--config", "/etc/berth/operator.yaml"]
LABEL org.opencontainers.image.title="Berth operator" \
      org.opencontainers.image.description="Desktop-OS virtual machines as Kubernetes resources: the operator" \
      org.opencontainers.image.licenses="Apache-2.0"

# Root, since machines need taps, bridges, control groups and mounts; QEMU itself gives that up.
FROM base AS agent
RUN --mount=type=bind,target=/context sh /context/install-packages.sh
COPY LICENSE sbom.cdx.json agent.mjs /opt/berth/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 0:0
ENTRYPOINT ["/usr/local/bin/node", "/opt/berth/agent.mjs"]
CMD ["--config", "/etc/berth/agent.yaml"]
LABEL org.opencontainers.image.title="Berth agent" \
      org.opencontainers.image.description="Desktop-OS virtual machines as Kubernetes resources: a host's agent, with QEMU" \
      org.opencontainers.image.licenses="Apache-2.0"
