#!/bin/sh
# For the agent's flag --bootstrap-script: runs each job in a new VM. The tokens of the agent stay on this machine.
# BERTH_CONFIG names the VM config, and BERTH_USER the user of its guest.
set -eu
# berth deletes the VM after a signal, and this shell waits for it. After SIGHUP this shell must end: only then berth gets that signal too,
# because the kernel sends it to the leader of a terminal alone when the agent is killed.
trap : INT TERM
# A pipeline can name this variable, but its value is of the agent.
unset BUILDKITE_AGENT_ACCESS_TOKEN

# Writes the variables of the job as text for a shell. The file of the agent has their names, but values with line breaks differ there.
write_variables() {
  sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' "$BUILDKITE_ENV_FILE" | while read -r name; do
    eval "value=\${$name-}"
    printf "export %s='%s'\n" "$name" "$(printf %s "$value" | sed "s/'/'\\\\''/g")"
  done
}

write_variables | berth vm run --config "$BERTH_CONFIG" --user "${BERTH_USER:-root}" -- sh -euc '
  eval "$(cat)"
  mkdir -p build
  cd build
  if [ "${BUILDKITE_SKIP_CHECKOUT:-false}" != true ]; then
    git clone -q -- "$BUILDKITE_REPO" .
    git checkout -q "$BUILDKITE_COMMIT"
  fi
  exec sh -ec "$BUILDKITE_COMMAND"'
