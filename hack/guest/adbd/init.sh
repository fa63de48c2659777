#!/bin/busybox sh
# First process of the guest with Debian's adbd, which tests of emulators boot in Android's place.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
ln -s /bin/sh /system/bin/sh
while read -r module; do insmod "/modules/$module"; done </modules/order

# The properties that a client asks for first. The boot's property appears when the boot has completed.
cat >/run/properties <<PROPERTIES
ro.build.characteristics=emulator
ro.build.type=userdebug
ro.build.version.release=16
ro.build.version.sdk=36
ro.product.cpu.abi=$([ "$(uname -m)" = aarch64 ] && echo arm64-v8a || echo x86_64)
ro.product.manufacturer=Berth
ro.product.model=guest with adbd
ro.serialno=berth
PROPERTIES
cat >/bin/getprop <<'SCRIPT'
#!/bin/sh
if [ $# = 0 ]; then
  sed 's/^\([^=]*\)=\(.*\)$/[\1]: [\2]/' /run/properties
else
  value=$(sed -n "s/^$1=//p" /run/properties)
  echo "${value:-$2}"
fi
SCRIPT
chmod 755 /bin/getprop

ip link set lo up
# The addresses of QEMU's user network.
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
adbd >/dev/null 2>&1 &
# berth.boot=SECONDS on the kernel's command line. With berth.boot=never the boot completes when somebody writes to /run/boot.
boot=$(sed -n 's/.*berth\.boot=\([^ ]*\).*/\1/p' /proc/cmdline)
mkfifo /run/boot
if [ "$boot" = never ]; then read -r _ </run/boot; else sleep "${boot:-0}"; fi
echo sys.boot_completed=1 >>/run/properties
echo "adbd guest: boot completed"
# The first process must never end.
while :; do wait; sleep 3600; done
