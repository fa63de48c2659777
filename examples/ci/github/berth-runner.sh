#!/bin/sh
# Runs one job of GitHub, then ends the machine. The user data of the VM is the JIT configuration of its runner.
# berth-runner.sh [FILE WITH THE USER DATA] [FOLDER OF THE RUNNER] [USER]
data=${1:-/run/cidata/user-data}
if [ ! -f "$data" ]; then
  mkdir -p /run/cidata && mount -o ro /dev/disk/by-label/cidata /run/cidata
fi
# The environment of a process is not visible to other users, but its arguments are.
ACTIONS_RUNNER_INPUT_JITCONFIG=$(cat "$data") && export ACTIONS_RUNNER_INPUT_JITCONFIG
# Services start without a home folder, and su -m keeps the environment.
USER=${3:-runner} && HOME=$(eval echo "~$USER") && export HOME USER LOGNAME="$USER"
cd "${2:-/opt/actions-runner}" && su -m "$USER" -c ./run.sh
echo "the runner ended with $?" >&2
${POWEROFF:-shutdown -h now}
