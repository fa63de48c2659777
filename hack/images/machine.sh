#!/bin/sh
# machine.sh RUNTIME FOLDER [FILE...] -- PROGRAM [ARGUMENT...]
#
# Runs a program in a root of its own, in a mount namespace that the caller has made: the files of RUNTIME, devices,
# each FILE for reading and the writable FOLDER at their own paths. Nothing of the container's file system is held, so
# the program outlives it.
set -eu
runtime=$1
folder=$2
shift 2
root=/mnt

# show SOURCE PATH OPTIONS, for folders.
show() {
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  # The host may have forbidden programs on the disk that the files are copied to.
  mount -o "remount,bind,$3" "$root$2"
}

mount -t tmpfs -o mode=755,size=1m machine "$root"
mkdir "$root/proc" "$root/dev" "$root/etc" "$root/old"
mkdir -m 1777 "$root/tmp"
for part in "$runtime"/*; do
  show "$part" "/${part##*/}" ro,nosuid,nodev,exec
done
while [ "$1" != -- ]; do
  # Images lie beside those of others: the file alone is shown.
  mkdir -p "$root${1%/*}"
  : > "$root$1"
  mount --bind "$1" "$root$1"
  mount -o remount,bind,ro,nosuid,nodev,noexec "$root$1"
  shift
done
shift
show "$folder" "$folder" rw,nosuid,nodev,noexec
# For guests in user-mode networks, whose names the hypervisor looks up.
# The kernel would look for the target of an absolute link in the container.
names=$(readlink /proc/1/root/etc/resolv.conf) || names=
case $names in /*) ;; *) names=/etc/resolv.conf ;; esac
cat "/proc/1/root$names" > "$root/etc/resolv.conf" || echo 'the host has no resolv.conf' >&2
mount -t proc proc "$root/proc"
mount -t devtmpfs devices "$root/dev"

cd "$root"
pivot_root . old
cd "$folder"
/usr/bin/umount --lazy /old
exec "$@"
