#!/usr/bin/env bash
# Fetch what the tests need from Debian and unpack it below .cache/, without installing anything:
#
#   .cache/upstream-protos/  the .proto files of CRI and of containerd's API, which cri_stubs is compared with
#   .cache/tools/            docker-registry, which serves the rig's images (.cache/tools/usr/bin/docker-registry)
#
# Runs as root on Debian 12 or later with mmdebstrap, which knows where Debian's packages are. A second run does nothing
# until this file changes; --force fetches again. Both directories appear whole or not at all.
set -euo pipefail

suite=forky
protos=(golang-k8s-cri-api-dev golang-github-containerd-containerd-api-dev)
tools=(docker-registry)

self=$(realpath "$0")
root=$(realpath "$(dirname "$self")/../..")
cache=$root/.cache
recipe=$(sha256sum "$self" | cut -d ' ' -f 1)

fail() {
    echo "fetch_debs.sh: $*" >&2
    exit 1
}

is_fresh() {
    [ "$(cat "$cache/$1/.recipe" 2>/dev/null)" = "$recipe" ]
}

# Put the finished directory $work/$1 in the place of $cache/$1.
publish() {
    echo "$recipe" >"$work/$1/.recipe"
    rm -rf "$work/old"
    if [ -e "$cache/$1" ]; then mv -T "$cache/$1" "$work/old"; fi
    mv -T "$work/$1" "$cache/$1"
}

[ "${1:-}" = "" ] || [ "$1" = --force ] || fail "unknown argument: $1"
mkdir -p "$cache"
exec 9>"$cache/.fetch_debs.lock"
flock 9
if [ "${1:-}" != --force ] && is_fresh upstream-protos && is_fresh tools; then
    exit 0
fi
[ "$(id -u)" = 0 ] || fail "must run as root"
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: apt-get install mmdebstrap"

work=$(mktemp -d "$cache/.fetch_debs.XXXXXX")
trap 'rm -rf "$work"' EXIT
export FETCH_INTO=$work/debs FETCH_PACKAGES="${protos[*]} ${tools[*]}"
mkdir "$FETCH_INTO"

# The root that mmdebstrap makes stays empty: it only lends its apt, set up for the suite. A suite in the making may be a
# snapshot whose Release file has passed its date.
# shellcheck disable=SC2016 # the hook's shell expands the variables
mmdebstrap --quiet --variant=custom --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
    --customize-hook='cd "$FETCH_INTO" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --quiet --quiet download $FETCH_PACKAGES' \
    "$suite" "$work/root" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "mmdebstrap could not fetch $FETCH_PACKAGES from $suite"
}

mkdir "$work/upstream-protos" "$work/tools"
for package in "${protos[@]}"; do
    dpkg-deb --fsys-tarfile "$FETCH_INTO/$package"_*.deb |
        tar --extract --directory "$work/upstream-protos" --strip-components=5 --wildcards './usr/share/gocode/src/*.proto'
done
for package in "${tools[@]}"; do
    dpkg-deb --extract "$FETCH_INTO/$package"_*.deb "$work/tools"
done
publish upstream-protos
publish tools
