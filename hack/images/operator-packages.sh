#!/bin/sh
# operator-packages.sh: names of the Debian packages that the operator calls programs of.
echo ipmitool
