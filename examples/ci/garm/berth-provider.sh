#!/bin/sh
# An external provider of GARM: each runner is a VM. The flavor of a pool is the name of a VM config, and its image an image of Berth.
# The image has the script and the unit of ../github. The token of the instance stays on this machine: the guest gets the configuration of
# its runner alone. GARM_PROVIDER_CONFIG_FILE can set BERTH_NAMESPACE, KUBECONFIG and BERTH_DEADLINE_SECONDS. It needs berth, curl and jq.
set -eu
umask 077
set -a
if [ -f "${GARM_PROVIDER_CONFIG_FILE:-}" ]; then . "$GARM_PROVIDER_CONFIG_FILE"; fi
set +a
# GARM gives the id of the provider, or its own name if a creation failed. A name of a VM has no capital letters.
vm=$(printf %s "${GARM_INSTANCE_ID:-}" | tr '[:upper:]' '[:lower:]')

# Writes VMs of Berth as instances of GARM. Faults are base64, as Go reads bytes. GARM has no word for a VM that is being made: it takes
# running, error, stopped and unknown alone, and deletes no instance with the last one.
instances() {
  jq -c 'map({
    provider_id: .name, name: .labels["garm-name"], pool_id: .labels["garm-pool"], os_type: "linux", os_arch: .architecture,
    status: ({Running: "running", Stopped: "stopped", Suspended: "stopped", Failed: "error"}[.status] // "running"),
    provider_fault: (if .status == "Failed" then (.message // "" | @base64) else "" end)
  })'
}

# Deletes objects, also if they are gone. Code 4 says that an object does not exist.
gone() { "$@" >&2 || [ $? -eq 4 ]; }

remove() {
  gone berth vm delete --wait=false "$1"
  gone berth secret delete "$1"
}

# Reads a file of the runner from GARM. Arguments of programs are visible to other users, so curl reads the token from its input.
runner_file() {
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl --fail --silent --show-error --max-time 30 --config - --output "$folder/$1" "$metadata/credentials/$1"
  base64 <"$folder/$1" | tr -d '\n'
}

create() {
  bootstrap=$(cat)
  get() { printf %s "$bootstrap" | jq -er "$1"; }
  # One assignment in a line: the shell ends if it fails.
  name=$(get .name)
  config=$(get .flavor)
  image=$(get .image)
  architecture=$(get .arch)
  metadata=$(get '."metadata-url"')
  token=$(get '."instance-token"')
  vm=$(printf %s "$name" | tr '[:upper:]' '[:lower:]')
  folder=$(mktemp -d)
  trap 'rm -r "$folder"' EXIT
  RUNNER=$(runner_file runner)
  CREDENTIALS=$(runner_file credentials)
  PARAMETERS=$(runner_file credentials_rsaparams)
  export RUNNER CREDENTIALS PARAMETERS
  jq -nr '{".runner": env.RUNNER, ".credentials": env.CREDENTIALS, ".credentials_rsaparams": env.PARAMETERS} | @base64' >"$folder/jit"
  berth secret create "$vm" --from-file "$folder/jit" >&2
  berth vm create "$vm" --config "$config" --image "$image" --architecture "$architecture" \
    --user-data-secret "$vm" --no-ssh-key \
    --labels "garm-controller=$GARM_CONTROLLER_ID,garm-pool=$GARM_POOL_ID,garm-name=$name" \
    --ttl-seconds-after-finished 0 --active-deadline-seconds "${BERTH_DEADLINE_SECONDS:-21600}" -o json >"$folder/vm" || {
    gone berth secret delete "$vm"
    exit 1
  }
  instances <"$folder/vm" | jq -c '.[0]'
}

case $GARM_COMMAND in
  CreateInstance) create ;;
  DeleteInstance) remove "$vm" ;;
  GetInstance)
    found=$(berth vm list "$vm" -o json)
    printf %s "$found" | instances | jq -ce '.[0]'
    ;;
  ListInstances)
    found=$(berth vm list -l "garm-pool=$GARM_POOL_ID" -o json)
    printf %s "$found" | instances
    ;;
  RemoveAllInstances)
    found=$(berth vm list -l "garm-controller=$GARM_CONTROLLER_ID" -o name)
    for one in $found; do remove "$one"; done
    ;;
  # The documentation of GARM says Start and Stop, and its program StartInstance and StopInstance.
  Start | StartInstance) berth vm start "$vm" >&2 ;;
  Stop | StopInstance) berth vm stop "$vm" >&2 ;;
  *)
    echo "unknown command $GARM_COMMAND" >&2
    exit 1
    ;;
esac
