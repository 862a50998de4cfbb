#!/bin/sh
# Counts on and on, holds so many MiB of memory meanwhile and reads one of them at each count. What is at / says over HTTP
# when it was at which number. Started from an image that was made of it, it goes on from the last one.
mkdir -p /www && cd /www && httpd -p 8080 || exit 1
while :; do echo && usleep 20000; done | awk -v held="${1:-1}" -v n="$(tail -n 1 index.html 2>/dev/null)" '
    BEGIN { one = sprintf("%1048575s", " "); for (i = 0; i < held; i++) memory[i] = one "x" }
    { n++; if (substr(memory[n % held], 1048576) != "x") exit 1; print n; fflush() }' |
while read -r n; do echo "$n $EPOCHREALTIME" >>index.html; done
