#!/bin/sh
# group.sh GROUP PROGRAM [ARGUMENT...]
#
# Runs a program in the control group GROUP, in each hierarchy.
set -eu
group=$1
shift
for hierarchy in /sys/fs/cgroup/*/; do
  mkdir -p "$hierarchy$group"
  # A cpuset starts empty and takes no process until it has processors and memory.
  for setting in cpuset.cpus cpuset.mems; do
    if [ -e "$hierarchy$setting" ]; then cat "$hierarchy$setting" > "$hierarchy$group/$setting"; fi
  done
  echo $$ > "$hierarchy$group/cgroup.procs"
done
exec "$@"
