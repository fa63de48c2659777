#!/bin/sh
# What the agent needs, unless the base image has it already.
set -eu
packages=$(sh "$(dirname "$0")/agent-packages.sh" "$(dpkg --print-architecture)")
# Split into words on purpose.
# shellcheck disable=SC2086
if dpkg-query --show $packages > /dev/null 2>&1; then exit 0; fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages
rm -rf /var/lib/apt/lists/*
