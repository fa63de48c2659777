#!/bin/sh
# Runs scripts one after the other in one VM, and deletes the VM on every way out: job.sh VMCONFIG SCRIPT...
# For a single command, `berth vm run` does all of this by itself. LIFE is the life in seconds of a VM whose script was killed.
set -eu
config=$1
shift
life=${LIFE:-600}
folder=$(mktemp -d)
vm='' holder='' step=''

clean_up() {
  code=$?
  trap '' HUP INT TERM
  for process in $holder $step; do kill "$process" 2>/dev/null || :; done
  [ -z "$vm" ] || berth vm delete --wait=false "$vm" >&2
  rm -r "$folder"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The first end includes the time limit of a deployment, which is ten minutes. The first form of date is that of Linux, the second one that
# of macOS.
first=$(($(date +%s) + 600 + life))
end=$(date -u -d "@$first" +%FT%TZ 2>/dev/null || date -u -r "$first" +%FT%TZ)
ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
vm=$(berth vm deploy job --generate-name --config "$config" --ssh-key "$folder/key.pub" --wait-for ready --alive-until "$end" -o name)

# Prolongs the life of the VM while this script runs, and not after it was killed. The end can only move later. The sleep has no streams,
# because it can outlive this script.
while kill -0 $$ 2>/dev/null; do
  [ $(($(date +%s) + life)) -le "$first" ] || berth vm prolong "$vm" --life "${life}s" >&2 || :
  sleep $((life / 2)) </dev/null >/dev/null 2>&1 || exit
done &
holder=$!

for script in "$@"; do
  # A shell waits for a command in the background, and a signal ends this wait.
  berth vm ssh -u "${BERTH_USER:-root}" -i "$folder/key" "$vm" -- sh -es <"$script" &
  step=$!
  wait "$step"
  step=''
done
