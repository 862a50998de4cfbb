#!/bin/sh
# join.sh FILE... -- COMMAND...: move into the cgroups whose cgroup.procs files are named, then become COMMAND.
set -eu
while [ "$1" != -- ]; do
    echo $$ > "$1"
    shift
done
shift
exec "$@"
