#!/bin/busybox sh
# First process of the small guest that the demo and the tests run.
/bin/busybox mkdir -p /proc /sys /dev /etc/acpi/PWRF /etc/qemu /sbin /www/cgi-bin /var/run
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir /dev/virtio-ports
echo "berth-guest: kernel started"

while read -r module; do insmod "/modules/$module"; done </modules/order

# A record at a fixed place of the disk, behind what the disk boots from: shows that a disk lived on.
disk=/dev/vda
record_block=15360 # × 4096 bytes = 60 MiB
boots=0
marker=
if [ -b $disk ]; then
  record=$(dd if=$disk bs=4096 skip=$record_block count=1 2>/dev/null | tr -d '\000')
  case "$record" in
    berth:*) boots=$(echo "$record" | cut -d: -f2) marker=$(echo "$record" | cut -d: -f3) ;;
  esac
  boots=$((boots + 1))
fi
echo "$boots" >/var/run/boots
cat >/bin/save-record <<'SCRIPT'
#!/bin/sh
printf 'berth:%s:%s:' "$(cat /var/run/boots)" "$(cat /var/run/marker)" >/var/run/record
dd if=/var/run/record of=/dev/vda bs=4096 seek=15360 count=1 conv=notrunc,fsync,sync 2>/dev/null
SCRIPT
cat >/bin/write-page <<'SCRIPT'
#!/bin/sh
cat >/www/index.new <<PAGE
berth-guest
hostname=$(hostname)
architecture=$(uname -m)
boot_id=$(cat /proc/sys/kernel/random/boot_id)
boots=$(cat /var/run/boots)
marker=$(cat /var/run/marker)
address=$(cat /var/run/address 2>/dev/null)
memory_kib=$(awk '/MemTotal/ {print $2}' /proc/meminfo)
cpus=$(nproc)
disk_sectors=$(cat /sys/block/vda/size 2>/dev/null)
PAGE
mv /www/index.new /www/index.html
SCRIPT
# A file system on the disk's second partition, where there is one, and something that writes to it without a pause:
# each number is on the disk before the next, so that twenty successive ones show a disk as it was at one moment.
cat >/bin/mount-data <<'SCRIPT'
#!/bin/sh
mkdir -p /data
grep -q ' /data ' /proc/mounts || mount -t ext4 /dev/vda2 /data
SCRIPT
# The seed disk comes after the machine's own disk, if there is one.
cat >/bin/mount-seed <<'SCRIPT'
#!/bin/sh
mkdir -p /seed
for device in /dev/vdb /dev/vda; do
  grep -q ' /seed ' /proc/mounts || mount -t iso9660 -o ro "$device" /seed 2>/dev/null
done
grep -q ' /seed ' /proc/mounts
SCRIPT
cat >/bin/write-on <<'SCRIPT'
#!/bin/sh
number=0
while :; do
  number=$((number + 1))
  echo "$number" | dd of="/data/number-$((number % 20))" conv=fsync 2>/dev/null
  echo "$number" >/var/run/number.new
  mv /var/run/number.new /var/run/number
  sleep 0.02
done
SCRIPT
# Fills the disk behind the record, a mebibyte after the other, each on the disk before the next.
cat >/bin/fill <<'SCRIPT'
#!/bin/sh
[ -e /var/run/piece ] || yes berth | head -c 1048576 >/var/run/piece
filled=$(cat /var/run/filled 2>/dev/null || echo 0)
end=$((filled + $1))
while [ "$filled" -lt "$end" ]; do
  dd if=/var/run/piece of=/dev/vda bs=1048576 seek=$((64 + filled)) conv=notrunc,fsync 2>/dev/null || exit
  filled=$((filled + 1))
  echo "$filled" >/var/run/filled.new
  mv /var/run/filled.new /var/run/filled
done
SCRIPT
# QEMU's own guest agent, as Debian has it. Its hook lets a freeze wait as long as a test wants, and says what was done.
cat >/etc/qemu/fsfreeze-hook <<'SCRIPT'
#!/bin/sh
[ "$1" = thaw ] || sleep "$(cat /var/run/agent)"
echo "$1" >>/var/run/freezes
SCRIPT
# The programs that it runs for a shutdown and for a new time.
ln -s /bin/hwclock /sbin/hwclock
cat >/sbin/shutdown <<'SCRIPT'
#!/bin/sh
echo "berth-guest: shutdown by the guest agent" >/dev/console
sync
poweroff -f
SCRIPT
echo 'PRETTY_NAME="Berth guest"' >/etc/os-release
cat >/bin/guest-agent <<'SCRIPT'
#!/bin/sh
# The links that udev would make.
for port in /sys/class/virtio-ports/*; do ln -sf "/dev/${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"; done
qemu-ga --daemonize --fsfreeze-hook=/etc/qemu/fsfreeze-hook || exit
until ls -l "/proc/$(pidof qemu-ga)/fd" | grep -q /dev/vport; do
  pidof qemu-ga >/dev/null || { echo "berth-guest: the guest agent has ended" && exit 1; }
  sleep 0.1
done
SCRIPT
# /cgi-bin/do?poweroff, ?reboot, ?marker=TEXT, ?connect=ADDRESS:PORT (says open or closed), ?write (begins to),
# ?number (that was written last), ?numbers (that the disk holds, and how it was mounted), ?agent=SECONDS (has the guest
# agent let a freeze wait as long; starts it), ?freezes (that it did), ?fill=MEBIBYTES (begins to), ?filled (how many it has),
# ?seed=FILE (of the seed disk), ?ignition (the config for Ignition), ?zeros=MEBIBYTES (sends them),
# ?metadata=PATH (the answer of the metadata service)
cat >/www/cgi-bin/do <<'SCRIPT'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
case "$QUERY_STRING" in
  poweroff | reboot)
    echo done
    (sleep 0.2; sync; "$QUERY_STRING" -f) >/dev/null 2>&1 </dev/null &
    ;;
  marker=*)
    echo "${QUERY_STRING#marker=}" | tr -cd 'A-Za-z0-9-' >/var/run/marker
    save-record && write-page && echo saved
    ;;
  connect=*)
    target=${QUERY_STRING#connect=}
    if nc -w 2 "${target%:*}" "${target##*:}" </dev/null >/dev/null 2>&1; then echo open; else echo closed; fi
    ;;
  write) mount-data && (write-on >/dev/null 2>&1 </dev/null &) && echo writing ;;
  number) cat /var/run/number ;;
  numbers) mount-data && cat /data/number-*; dmesg | grep EXT4-fs ;;
  agent=*)
    echo "${QUERY_STRING#agent=}" >/var/run/agent
    if pidof qemu-ga >/dev/null || guest-agent >/dev/console 2>&1 </dev/null; then echo listening; fi
    ;;
  freezes) cat /var/run/freezes ;;
  fill=*) (fill "$(echo "${QUERY_STRING#fill=}" | tr -cd 0-9)" >/dev/null 2>&1 </dev/null &) && echo filling ;;
  filled) cat /var/run/filled ;;
  seed=*) mount-seed && cat "/seed/$(echo "${QUERY_STRING#seed=}" | tr -cd a-z-)" ;;
  zeros=*) dd if=/dev/zero bs=1048576 count="$(echo "${QUERY_STRING#zeros=}" | tr -cd 0-9)" 2>/dev/null ;;
  metadata=*) printf 'GET %s HTTP/1.0\r\n\r\n' "${QUERY_STRING#metadata=}" | nc -w 2 169.254.169.254 80 ;;
  ignition) cat /sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw ;;
  *) echo unknown ;;
esac
SCRIPT
cat >/etc/udhcpc.sh <<'SCRIPT'
#!/bin/sh
case "$1" in
  bound | renew)
    ip address flush dev "$interface"
    ip address add "$ip/$mask" dev "$interface"
    [ -n "$router" ] && ip route replace default via "${router%% *}" dev "$interface"
    [ -n "$hostname" ] && hostname "$hostname"
    : >/etc/resolv.conf
    for server in $dns; do echo "nameserver $server" >>/etc/resolv.conf; done
    echo "$ip" >/var/run/address
    write-page
    ;;
esac
SCRIPT
# What a start from the memory of an image renews in this guest beside what it renews in each. The program makes a kernel without the driver
# vmgenid use new random numbers: ioctl(0, RNDRESEEDCRNG), then exit with the error.
mkdir -p /etc/berth/renew.d
case "$(uname -m)" in
  x86_64) program=f0VMRgIBAQAAAAAAAAAAAAIAPgABAAAAeABAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAABAAAAAAAAAAEAAAAFAAAAAAAAAAAAAAAAAEAAAAAAAAAAQAAAAAAAkwAAAAAAAACTAAAAAAAAAAAQAAAAAAAAMf++B1IAADHSuBAAAAAPBYnH99+4PAAAAA8F ;;
  *) program=f0VMRgIBAQAAAAAAAAAAAAIAtwABAAAAeABAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAABAAAAAAAAAAEAAAAFAAAAAAAAAAAAAAAAAEAAAAAAAAAAQAAAAAAAmAAAAAAAAACYAAAAAAAAAAAAAQAAAAAAAACAUuFAilICAIDSqAOAUgEAANTgAwBLqAuAUgEAANQ= ;;
esac
echo "$program" | base64 -d >/etc/berth/reseed
cat >/etc/berth/renew.d/guest <<'SCRIPT'
#!/bin/sh
rm -f /etc/dropbear/* /var/run/address
killall dropbear 2>/dev/null && dropbear -s -R
killall udhcpc 2>/dev/null
# A request that is sent before the card has a carrier is lost, and repeated only after a second.
(until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do usleep 20000; done
udhcpc -i eth0 -s /etc/udhcpc.sh -b -t 15 -T 1 -A 1) >/dev/null 2>&1 </dev/null &
SCRIPT
chmod 755 /etc/berth/reseed /etc/berth/renew.d/guest
cat >/etc/acpi/PWRF/00000080 <<'SCRIPT'
#!/bin/sh
echo "berth-guest: power button" >/dev/console
sync
poweroff -f
SCRIPT
chmod 755 /sbin/shutdown /bin/save-record /bin/write-page /bin/mount-data /bin/mount-seed /bin/write-on /bin/fill /bin/guest-agent /etc/qemu/fsfreeze-hook /www/cgi-bin/do /etc/udhcpc.sh /etc/acpi/PWRF/00000080
printf '%s' "$marker" >/var/run/marker
[ -b $disk ] && save-record
hostname berth-guest
acpid -d -l /dev/null >/dev/null 2>&1 &
ip link set lo up
# The seed is a disk with the label cidata. Its keys let root log in by SSH, and without keys nothing listens. No login takes a password.
mkdir -p /root/.ssh /etc/dropbear /dev/pts
mount -t devpts devpts /dev/pts
echo 'root:x:0:0:root:/root:/bin/sh' >/etc/passwd
# Without a seed nothing is mounted, because the disk is made to be an ISO too.
for device in /dev/vdb /dev/vda; do
  [ "$(dd if=$device bs=8 skip=4101 count=1 2>/dev/null | head -c 6)" = cidata ] || continue
  mount-seed
  grep -oE '(ssh-[a-z0-9]+|ecdsa-sha2-[a-z0-9]+) [A-Za-z0-9+/]+=*' /seed/meta-data >/root/.ssh/authorized_keys && dropbear -s -R
done
[ -e /etc/demo.sh ] && sh /etc/demo.sh
write-page
httpd -h /www
echo "berth-guest: boot $boots of this disk, marker '$marker'"
if [ -e /sys/class/net/eth0 ]; then
  ip link set eth0 up
  udhcpc -i eth0 -s /etc/udhcpc.sh -b -t 15 -T 1 -A 1 >/dev/null 2>&1
fi
echo "berth-guest: address $(cat /var/run/address 2>/dev/null)"
echo "berth-guest: ready"
# Enter on the serial console starts a shell. Without the key, nothing but the guest's own lines is on the console.
(while read -r _; do setsid cttyhack sh; done) </dev/console >/dev/console 2>&1 &
# The first process must never end.
while :; do wait; sleep 3600; done
