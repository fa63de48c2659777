#!/bin/sh
# agent-packages.sh ARCHITECTURE: names of the Debian packages that the agent calls programs of.
set -eu
case $1 in
  amd64) echo qemu-system-x86 ;;
  arm64) echo qemu-system-arm qemu-efi-aarch64 ;;
  *) echo "no hypervisor is packed for $1" >&2; exit 1 ;;
esac
# The D-Bus display, over which the agent sets the DPI of screens, is in qemu-system-modules-opengl.
echo mount qemu-system-modules-opengl qemu-utils xz-utils iproute2 nftables conntrack dnsmasq-base
