#!/bin/bash
# Stand-in for the runners of CI systems that start jobs with scripts of an integration: it makes the calls of such scripts, runs the stages
# of a job in a fresh VM over SSH, and deletes the VM.
#
#   runner.sh executor NAME KEY   as the custom executor of GitLab: NAME is the whole name of the VM
#   runner.sh hooks NAME KEY      as the hooks of Buildkite: the cluster completes the name
set -euo pipefail
kind=$1 name=$2 key=$3

login() {
  ssh -i "$key" -p "$port" -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "root@$ip" "$@"
}

prepare() {
  if [ "$kind" = executor ]; then
    vm=$(berth vm deploy "$name" --config ci -o json 2>&1)
  else
    vm=$(berth vm deploy --config ci --generate-name "$name" -o json 2>&1)
  fi
  name=$(jq -er '.[0].name' <<<"$vm") ip=$(jq -er '.[0].ip' <<<"$vm") port=$(jq -er '.[0].ssh' <<<"$vm")
  for _ in {1..90}; do
    if login true 2>/dev/null; then return; fi
    sleep 1
  done
  echo "no login into $name" >&2
  return 1
}

cleanup() {
  berth vm delete "$name"
}

trap cleanup EXIT
prepare
# Each stage is a script of its own, as runners make them.
for stage in 'test -n "$BASH_VERSION"' 'set -o pipefail; echo hello | cat' 'exit 0'; do
  login /bin/bash <<<"$stage"
done
