#!/bin/sh
# For the agent's flag --bootstrap-script: runs each job in a new VM. The tokens of the agent stay on this machine.
# BERTH_CONFIG names the VM config, and BERTH_USER the user of its guest.
set -eu
exec berth vm run --config "$BERTH_CONFIG" --user "${BERTH_USER:-root}" --copy "$BUILDKITE_ENV_FILE:/tmp/job.env" -- sh -euc '
  set -a; . /tmp/job.env; set +a; rm /tmp/job.env
  mkdir -p /tmp/build; cd /tmp/build
  [ "${BUILDKITE_SKIP_CHECKOUT:-false}" = true ] || { git clone -q "$BUILDKITE_REPO" .; git checkout -q "$BUILDKITE_COMMIT"; }
  exec sh -ec "$BUILDKITE_COMMAND"'
