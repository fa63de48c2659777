#!/bin/busybox sh
# First process of the cloud guest: loads the modules of its kernel and starts systemd from the disk.
/bin/busybox mkdir -p /proc /sys /dev /disk
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
# The disk may appear some moments after its driver was loaded.
until root=$(findfs LABEL=root 2>/dev/null) && mount -t ext4 "$root" /disk; do sleep 0.1; done
umount /proc /sys
mount -o move /dev /disk/dev
exec switch_root /disk /sbin/init
