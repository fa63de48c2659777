#!/bin/sh
# install-packages.sh SNAPSHOT PACKAGE...: installs the packages, unless the base image has them already. With a SNAPSHOT, such as
# 20261115T000000Z, from Debian's archive as it was then, and with an empty one from the base image's own sources. The base image's keys check its signatures in both cases.
set -eu
snapshot=$1
shift
left_out=$(sh "$(dirname "$0")/left-out.sh" | sed 's/^/-o DPkg::Options::=--path-exclude=/')
if dpkg-query --show "$@" > /dev/null 2>&1; then exit 0; fi

sources=$(mktemp)
apt() {
  if [ -n "$snapshot" ]; then
    # An archive of the past says that its lists are out of date.
    set -- -o Dir::Etc::SourceList="$sources" -o Dir::Etc::SourceParts=- -o Acquire::Check-Valid-Until=false "$@"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
for archive in "debian/$snapshot $suite" "debian-security/$snapshot $suite-security"; do
  echo "deb http://snapshot.debian.org/archive/$archive main"
done > "$sources"
apt update -q
# The patterns are for dpkg, not for the shell.
set -f
apt install -y -q --no-install-recommends $left_out "$@"
rm "$sources"
