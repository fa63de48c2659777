#!/bin/sh
# libraries.sh PROGRAM...: the programs and all shared libraries that the loader gives them, one path a line.
set -eu
printf '%s\n' "$@"
for program in "$@"; do
  # "NAME => PATH (ADDRESS)", or "PATH (ADDRESS)" of the loader itself.
  ldd "$program" | sed -n -e 's/^.* => \(\/[^ ]*\) .*$/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) (.*$/\1/p'
done | sort -u
