#!/bin/sh
# machine-files.sh: checksums and paths of all that a machine's process opens of the image: the hypervisor with its
# modules and firmware, what leaves the image's own root behind (machine.sh), and the log writer's interpreter.
set -eu
libraries="$(dirname "$0")/libraries.sh"
architecture=$(uname -m)
{
  sh "$libraries" /usr/bin/umount /usr/bin/perl "/usr/bin/qemu-system-$architecture" /usr/lib/*/qemu/*.so
  for folder in /usr/share/qemu /usr/share/seabios /usr/lib/ipxe /usr/share/AAVMF /usr/share/qemu-efi-aarch64; do
    if [ -d "$folder" ]; then find -L "$folder" -type f; fi
  done
} | LC_ALL=C sort -u | xargs sha256sum
