#!/bin/sh
# node.sh GROUP NAME FOLDER
#
# The first process of a node, in namespaces of its own for all but users: sets up its host name and its mounts. The
# control group GROUP is the root of its hierarchies. What it writes below /var/lib and /var/log lies in FOLDER.
set -eu
hostname "$2"
# Volumes that are mounted later are to be seen in containers.
mount --make-rshared /
for hierarchy in /sys/fs/cgroup/*/; do
  mount --bind "$hierarchy$1" "$hierarchy"
done
mount -t tmpfs -o mode=755 run /run
mkdir -p "$3/lib" "$3/log"
mount --bind "$3/lib" /var/lib
mount --bind "$3/log" /var/log
# Guests on nodes are emulated everywhere alike: a KVM inside of a virtual machine may only interpret, and hosts of an
# earlier release do not notice.
if [ -e /dev/kvm ]; then mount --bind /dev/null /dev/kvm; fi
# The kubelet sets these, and they are the whole machine's.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  mkdir -p "$3/sys/${setting%/*}"
  cat "/proc/sys/$setting" > "$3/sys/$setting"
  mount --bind "$3/sys/$setting" "/proc/sys/$setting"
done
# A first process takes up those whose parents have ended: the shell does.
exec sh -c 'sleep infinity & wait' node-is-up
