# Images of the operator and of the agent, one target each. `make images` makes their context (dist/image) and builds both.

# Debian with Node.js 24 as /usr/local/bin/node.
ARG BASE=docker.io/library/node:24-bookworm-slim
FROM ${BASE} AS base

FROM base AS operator-files
COPY libraries.sh operator-files.sh /tmp/
RUN sh /tmp/operator-files.sh /files

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
COPY agent-packages.sh install-packages.sh libraries.sh machine-files.sh /opt/berth/build/
RUN sh /opt/berth/build/install-packages.sh && sh /opt/berth/build/machine-files.sh > /opt/berth/machine-files
COPY LICENSE sbom.cdx.json machine.sh agent.mjs /opt/berth/
# With these the agent gives machines a root of their own, so that they outlive its container.
ENV BERTH_MACHINE_FILES=/opt/berth/machine-files BERTH_MACHINE_SCRIPT=/opt/berth/machine.sh
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 0:0
ENTRYPOINT ["/usr/local/bin/node", "/opt/berth/agent.mjs"]
CMD ["--config", "/etc/berth/agent.yaml"]
LABEL org.opencontainers.image.title="Berth agent" \
      org.opencontainers.image.description="Desktop-OS virtual machines as Kubernetes resources: a host's agent, with QEMU" \
      org.opencontainers.image.licenses="Apache-2.0"
