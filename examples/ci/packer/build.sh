#!/bin/sh
# Boots a VM, lets Packer set up its guest, and saves its disk as a new image: build.sh VMCONFIG IMAGE
# LIFE is the life of the VM in seconds, also if this script is killed. PORT is a port of this machine for each build.
set -eu
here=$(dirname "$0")
port=${PORT:-2222}
folder=$(mktemp -d)
vm='' forward='' packer=''

clean_up() {
  code=$?
  trap '' HUP INT TERM
  for process in $packer $forward; do kill "$process" 2>/dev/null || :; done
  [ -z "$vm" ] || berth vm delete --wait=false "$vm"
  rm -r "$folder"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The first form of date is that of Linux, the second one that of macOS.
end=$(($(date +%s) + ${LIFE:-7200}))
end=$(date -u -d "@$end" +%FT%TZ 2>/dev/null || date -u -r "$end" +%FT%TZ)
ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
vm=$(berth vm deploy packer --generate-name --config "$1" --ssh-key "$folder/key.pub" --wait-for ready --alive-until "$end" -o name)
berth vm port-forward "$vm" "$port:22" &
forward=$!
# Another build with the same port would take the place of this one.
sleep 1
kill -0 "$forward"
# Packer waits for the SSH server by itself. A shell waits for a command in the background, and a signal ends this wait.
packer build -var "port=$port" -var "key=$folder/key" "$here/guest.pkr.hcl" &
packer=$!
wait "$packer"
packer=''
berth vm save "$vm" "$2"
