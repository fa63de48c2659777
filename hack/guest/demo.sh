#!/bin/sh
# The guest of the demo has this beside the guest of the tests: the name of its VM, the guest agent, and a login on its screen.
name=$(sed -n 's/.*"local-hostname" *: *"\([^"]*\)".*/\1/p' /seed/meta-data 2>/dev/null)
[ -n "$name" ] && hostname "$name"
echo 0 >/var/run/agent
guest-agent &
# The screen asks for no password, because who sees it may also open the serial console, which has none.
echo 'root::0:0:root:/root:/bin/bash' >/etc/passwd
echo /bin/bash >/etc/shells
echo "PS1='\\u@\\h:\\w# '" >/root/.bashrc
echo '. /root/.bashrc' >/root/.profile
# Clears the screen, and keeps it from going dark.
printf '\033[2J\033[H\033[9;0]\n' >/etc/issue
for line in '' "Berth: the guest of the VM $(hostname)" ''; do
  printf '\033[97;44m   %-60s\033[0m\n' "$line" >>/etc/issue
done
echo >>/etc/issue
printf '   Linux \\r on \\m\n   Log in as root. There is no password.\n\n' >>/etc/issue
printf '   The page of the guest: wget -qO- http://127.0.0.1/\n   Turn off: poweroff -f\n\n' >/etc/motd
while :; do setsid getty 0 tty1 linux; done >/dev/null 2>&1 </dev/null &
