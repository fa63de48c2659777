#!/bin/sh
# operator-files.sh FOLDER: all that the operator's image has besides the operator, taken from the base image.
set -eu
files=$1
mkdir -p "$files/etc" "$files/var/lib/dpkg/status.d"
mkdir -m 1777 "$files/tmp"
paths=$(sh "$(dirname "$0")/libraries.sh" /usr/local/bin/node /usr/bin/ipmitool)
for path in $paths; do
  cp --dereference --preserve=mode,timestamps --parents "$path" "$files"
done
printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' > "$files/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' > "$files/etc/group"
printf 'hosts: files dns\n' > "$files/etc/nsswitch.conf"
# Scanners for known vulnerabilities look here.
cp /etc/os-release "$files/etc/os-release"
# Each line is "PACKAGE:ARCHITECTURE: PATH", or tells of a diverted path. Node.js is of no package, so the query ends with an error.
owners=$(for path in $paths; do dpkg-query --search "*/${path##*/}" | grep -v '^diversion ' || true; done)
for package in $(echo "$owners" | cut -d : -f 1 | sort -u); do
  dpkg-query --status "$package" > "$files/var/lib/dpkg/status.d/$package"
  cp --parents "/usr/share/doc/$package/copyright" "$files"
done
