#!/bin/sh
# node.sh GROUP NAME FOLDER
#
# Becomes a node: a control group GROUP in each hierarchy, and in namespaces of their own processes, mounts and the host
# name NAME. What it writes below /var/lib and /var/log lies in FOLDER. Its network namespace is the caller's.
set -eu
if [ "${4:-}" = inside ]; then
  hostname "$2"
  # Volumes that are mounted later are to be seen in containers.
  mount --make-rshared /
  mount -t tmpfs -o mode=755 run /run
  mkdir -p "$3/lib" "$3/log"
  mount --bind "$3/lib" /var/lib
  mount --bind "$3/log" /var/log
  # The kubelet sets these, and they are the whole machine's.
  for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    mkdir -p "$3/sys/${setting%/*}"
    cat "/proc/sys/$setting" > "$3/sys/$setting"
    mount --bind "$3/sys/$setting" "/proc/sys/$setting"
  done
  # A first process takes up those whose parents have ended: the shell does.
  exec sh -c 'sleep infinity & wait' node-is-up
fi
for hierarchy in /sys/fs/cgroup/*/; do
  group=$hierarchy$1
  mkdir -p "$group"
  for setting in cpuset.cpus cpuset.mems; do
    if [ -e "$hierarchy$setting" ]; then cat "$hierarchy$setting" > "$group/$setting"; fi
  done
  echo $$ > "$group/cgroup.procs"
done
exec unshare --pid --mount --uts --fork --mount-proc --kill-child sh "$0" "$1" "$2" "$3" inside
