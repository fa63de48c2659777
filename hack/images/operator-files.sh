#!/bin/sh
# operator-files.sh FOLDER: all that the operator's image has besides the operator, taken from the base image.
set -eu
files=$1
mkdir -p "$files/etc" "$files/var/lib/dpkg/status.d"
mkdir -m 1777 "$files/tmp"
sh "$(dirname "$0")/libraries.sh" /usr/local/bin/node | while read -r path; do
  cp --dereference --preserve=mode,timestamps --parents "$path" "$files"
done
printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' > "$files/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' > "$files/etc/group"
printf 'hosts: files dns\n' > "$files/etc/nsswitch.conf"
# Scanners for known vulnerabilities look here.
cp /etc/os-release "$files/etc/os-release"
for package in libc6 libgcc-s1 libstdc++6; do
  dpkg-query --status "$package" > "$files/var/lib/dpkg/status.d/$package"
done
