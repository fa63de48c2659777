#!/bin/sh
# Installs or upgrades the agent of this folder on a Mac, and starts it: sudo ./install.sh USER
# USER is the user who is logged in automatically. The agent and its machines run as this user.
# BERTH_ROOT is a folder before all paths, for tests.
set -eu
cd "$(dirname "$0")"

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

root=${BERTH_ROOT:-}
user=${1:-}
label=dev.berth.agent
program=$root/usr/local/bin/berth-agent
plist=$root/Library/LaunchAgents/$label.plist
settings=$root/usr/local/etc/berth
data=$root/usr/local/var/berth

[ -n "$user" ] || fail "name the user who is logged in automatically: sudo ./install.sh USER"
uid=$(id -u "$user") || fail "there is no user $user"
[ "$uid" -ne 0 ] || fail "guests with macOS do not start as root: name another user"
[ "$(id -u)" -eq 0 ] || fail "run this with sudo"
service=gui/$uid/$label

mkdir -p "$(dirname "$program")" "$(dirname "$plist")" "$settings" "$data"
# The settings contain the credentials of the host.
chmod 700 "$settings"
chown "$user" "$settings" "$data"

# A running agent keeps its old file.
cp berth-agent "$program.new"
chmod 755 "$program.new"
mv "$program.new" "$program"

unchanged=false
if cmp -s "$label.plist" "$plist"; then
  unchanged=true
fi
cp "$label.plist" "$plist"
chmod 644 "$plist"

# Returns whether guests may run, also those of other programs. macOS has a bridge with a number from 100 while it has a network for them.
guests_run() {
  if pgrep -x tart >/dev/null; then
    return 0
  fi
  interfaces=$(ifconfig -l) || return 0
  case $interfaces in
    *bridge1[0-9][0-9]*) return 0 ;;
  esac
  return 1
}

# Guests keep their addresses for a day by default, so a busy host has none left after about 250 guests.
leases=$root/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist
given=$root/var/db/dhcpd_leases
shorten="sudo defaults write $leases bootpd -dict-add DHCPLeaseTimeSecs -int 600"
if dhcp=$(defaults read "$leases" bootpd 2>&1); then
  seconds=$(printf '%s\n' "$dhcp" | sed -n 's/.*DHCPLeaseTimeSecs[ "]*=[ "]*\([0-9][0-9]*\).*/\1/p' | head -n 1)
  if [ -z "$seconds" ]; then
    echo "The DHCP server has other settings. Add DHCPLeaseTimeSecs 600 to bootpd: $shorten"
  elif [ "$seconds" -ne 600 ]; then
    echo "Guests keep their addresses for $seconds seconds, as DHCPLeaseTimeSecs says. For 10 minutes: $shorten"
  fi
else
  case $dhcp in
    *'does not exist'*)
      defaults write "$leases" bootpd -dict DHCPLeaseTimeSecs -int 600
      echo "From now on, guests keep their addresses for 10 minutes."
      # Earlier leases would last up to a day. Guests that run still need theirs.
      if guests_run; then
        echo "Earlier leases stay until they end, because guests may run: $given"
      else
        rm -f "$given"
      fi
      ;;
    *) echo "The settings of the DHCP server cannot be read, so guests keep their addresses as before: $dhcp" ;;
  esac
fi

if [ ! -e "$settings/agent.yaml" ]; then
  echo "The agent is installed. Write $settings/agent.yaml, and run this again to start the agent."
  exit 0
fi
# Only files of one name are given to the user, while the user cannot change the folder: another name could be that of a file of the system.
chown root "$settings"
find "$settings" -maxdepth 1 -type f -links 1 -exec chown -h "$user" {} +
chown "$user" "$settings"

if ! launchctl print "$service" >/dev/null 2>&1; then
  launchctl bootstrap "gui/$uid" "$plist"
  echo "The agent has been started."
elif $unchanged; then
  launchctl kickstart -k "$service"
  echo "The agent has been restarted. Its machines run on."
else
  # launchd reads a changed file only if it loads the service again. It may need some seconds to end the agent.
  launchctl bootout "$service"
  tries=0
  while launchctl print "$service" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "launchd did not end the agent within 60 seconds"
    sleep 1
  done
  launchctl bootstrap "gui/$uid" "$plist"
  echo "The agent has been loaded again. Its machines run on."
fi
