# Images of the operator and of the agent, one target each. `make images` makes their context (dist/image) and builds both.

# Debian with Node.js 24 as /usr/local/bin/node. Pinned by digest, so that nobody can put another image under its tag.
ARG BASE=docker.io/library/node:24-trixie-slim@sha256:8ec5d7557396cfe32d21c3f9c13072355ceab22b584578ca4bb28af31120cffe
# Debian's archive as it was at this moment: the same packages for everybody who builds. Empty: as it is today.
ARG SNAPSHOT=20261115T000000Z

FROM ${BASE} AS base

FROM base AS operator-files
ARG SNAPSHOT
COPY install-packages.sh left-out.sh libraries.sh operator-files.sh operator-packages.sh /tmp/
RUN sh /tmp/install-packages.sh "$SNAPSHOT" $(sh /tmp/operator-packages.sh) && sh /tmp/operator-files.sh /files

# Node.js and ipmitool with their libraries, the operator and the HTTP API: no shell, no package manager, nothing that is written to.
FROM scratch AS operator
COPY --from=operator-files /files /
COPY LICENSE sbom.cdx.json operator.mjs server.mjs runners.mjs passwordworker.mjs /opt/berth/
# Files for browsers, with their licence. The server finds them by the name of their package.
COPY swagger-ui-dist /opt/berth/node_modules/swagger-ui-dist/
COPY console /opt/berth/console/
# One heap for all threads: glibc keeps one for each, mostly empty, 10 MB in all. The benchmark starts the operator so, too.
ENV PATH=/usr/local/bin:/usr/bin MALLOC_ARENA_MAX=1
USER 65532:65532
EXPOSE 8081 8443 8444
# A larger space for new objects saves a quarter of the CPU time of a fleet and costs 8 MB. Node.js reads its size only at the start.
ENTRYPOINT ["/usr/local/bin/node", "--min-semi-space-size=8", "/opt/berth/operator.mjs"]
CMD ["--config", "/etc/berth/operator.yaml"]
LABEL org.opencontainers.image.title="Berth operator" \
      org.opencontainers.image.description="Desktop-OS virtual machines as Kubernetes resources: the operator and the HTTP API" \
      org.opencontainers.image.licenses="Apache-2.0"

# Root, since machines need taps, bridges, control groups and mounts; QEMU itself gives that up.
FROM base AS agent
ARG SNAPSHOT
COPY agent-packages.sh install-packages.sh left-out.sh libraries.sh machine-files.sh /opt/berth/build/
RUN sh /opt/berth/build/install-packages.sh "$SNAPSHOT" \
      $(sh /opt/berth/build/agent-packages.sh "$(dpkg --print-architecture)") \
    && rm -rf /var/lib/apt/lists/* \
    && sh /opt/berth/build/machine-files.sh > /opt/berth/machine-files
COPY LICENSE sbom.cdx.json machine.sh agent.mjs /opt/berth/
# With these the agent gives machines a root of their own, so that they outlive its container.
ENV BERTH_MACHINE_FILES=/opt/berth/machine-files BERTH_MACHINE_SCRIPT=/opt/berth/machine.sh
# One heap for all threads, as for the operator. A pull needs 24 MB less. Machines and qemu-img do not get this variable.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin MALLOC_ARENA_MAX=1
USER 0:0
ENTRYPOINT ["/usr/local/bin/node", "/opt/berth/agent.mjs"]
CMD ["--config", "/etc/berth/agent.yaml"]
LABEL org.opencontainers.image.title="Berth agent" \
      org.opencontainers.image.description="Desktop-OS virtual machines as Kubernetes resources: a host's agent, with QEMU" \
      org.opencontainers.image.licenses="Apache-2.0"
