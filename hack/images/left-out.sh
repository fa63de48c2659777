#!/bin/sh
# left-out.sh: patterns of files in Debian packages that no image needs. These are drivers of graphics cards, 200 MB, which QEMU loads only for a
# screen with OpenGL.
printf '%s\n' '/usr/lib/*/libLLVM*' '/usr/lib/*/libgallium*' '/usr/lib/*/libz3*'
