#!/bin/sh
# Removes the agent from a Mac, with its data directory: sudo ./remove.sh USER
# A data directory that the settings choose is left, because other files can be in it.
# BERTH_ROOT is a folder before all paths, for tests.
set -eu

fail() {
  echo "remove.sh: $1" >&2
  exit 1
}

root=${BERTH_ROOT:-}
user=${1:-}
label=dev.berth.agent
settings=$root/usr/local/etc/berth
default=$root/usr/local/var/berth

# Prints the dataDirectory of the settings, or nothing if it is in a form that this script does not read.
configured() {
  awk '
    found && /^[ \t]+[^ \t#]/ { value = "" }
    found { exit }
    /^dataDirectory:[ \t]/ {
      found = 1
      value = $0
      sub(/^dataDirectory:[ \t]+/, "", value)
      sub(/[ \t]+#.*/, "", value)
      sub(/[ \t\r]+$/, "", value)
      if (value ~ /^".*"$/ || value ~ /^\047.*\047$/) value = substr(value, 2, length(value) - 2)
    }
    END { print value }' "$settings/agent.yaml"
}

# Sets data to the data directory of the agent.
find_data() {
  data=$default
  if [ ! -e "$settings/agent.yaml" ] || ! grep -v '^[[:space:]]*#' "$settings/agent.yaml" | grep -q dataDirectory; then
    return
  fi
  path=$(configured)
  case $path in
    '' | *[\"\'\\]* | [\#\&\*\!\|\>\{\[%@\`]*)
      fail "cannot read dataDirectory in $settings/agent.yaml. Write it as a path on one line"
      ;;
    /*) data=$root${path%/} ;;
    *) data=$settings/${path%/} ;;
  esac
}

[ -n "$user" ] || fail "name the user of the agent: sudo ./remove.sh USER"
uid=$(id -u "$user") || fail "there is no user $user"
[ "$(id -u)" -eq 0 ] || fail "run this with sudo"
find_data
for folder in "$default" "$data"; do
  if [ -d "$folder/machines" ] && [ -n "$(ls "$folder/machines")" ]; then
    fail "this host has machines in $folder. Drain it and delete its VMs first"
  fi
done

if launchctl print "gui/$uid/$label" >/dev/null 2>&1; then
  launchctl bootout "gui/$uid/$label"
fi
rm -f "$root/Library/LaunchAgents/$label.plist" "$root/usr/local/bin/berth-agent"
rm -rf "$settings" "$default"
if [ -e "$data" ]; then
  echo "The data directory $data is left, with credentials of the host. Remove it yourself."
fi
echo "The agent is removed. Delete the Node of this host: kubectl delete node NAME"
