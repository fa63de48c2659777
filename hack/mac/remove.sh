#!/bin/sh
# Removes the agent from a Mac, with its data directory: sudo ./remove.sh USER
# BERTH_ROOT is a folder before all paths, for tests.
set -eu

fail() {
  echo "remove.sh: $1" >&2
  exit 1
}

root=${BERTH_ROOT:-}
user=${1:-}
label=dev.berth.agent
data=$root/usr/local/var/berth

[ -n "$user" ] || fail "name the user of the agent: sudo ./remove.sh USER"
uid=$(id -u "$user") || fail "there is no user $user"
[ "$(id -u)" -eq 0 ] || fail "run this with sudo"
if [ -d "$data/machines" ] && [ -n "$(ls "$data/machines")" ]; then
  fail "this host has machines. Drain it and delete its VMs first"
fi

if launchctl print "gui/$uid/$label" >/dev/null 2>&1; then
  launchctl bootout "gui/$uid/$label"
fi
rm -f "$root/Library/LaunchAgents/$label.plist" "$root/usr/local/bin/berth-agent"
rm -rf "$root/usr/local/etc/berth" "$data"
echo "The agent is removed. Delete the Node of this host: kubectl delete node NAME"
