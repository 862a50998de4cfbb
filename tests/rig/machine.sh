#!/bin/sh
# Boot systemd as process 1 of namespaces of its own. Run by tests/rig/machine.py, in two steps like enter.sh:
#   machine.sh            joins the machine's cgroup, then runs itself again in new namespaces
#   machine.sh inside     mounts a root and becomes systemd
# By environment:
#   MACHINE_NAME MACHINE_AREA (an empty directory) MACHINE_CGROUP_ROOTS (cgroup.procs files)
#   MACHINE_CGROUP_MOUNTS (dir:type:options ...) MACHINE_BINDS (directories of this machine, at the same path inside)
#   MACHINE_SETUP (a program that is run in the root, before systemd)
set -eu

if [ "${1:-}" != inside ]; then
    for file in $MACHINE_CGROUP_ROOTS; do echo $$ > "$file"; done
    exec unshare --mount --uts --ipc --cgroup --net --pid --fork --kill-child --propagation private -- /bin/sh "$0" inside
fi

hostname "$MACHINE_NAME" 2>/dev/null || echo "$MACHINE_NAME" > /proc/sys/kernel/hostname
ip link set lo up

# This machine's own root below, never written; a tmpfs above, gone with the namespace.
mount -t tmpfs -o mode=755,size=1g tmpfs "$MACHINE_AREA"
root="$MACHINE_AREA/root"
mkdir "$MACHINE_AREA/upper" "$MACHINE_AREA/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$MACHINE_AREA/upper,workdir=$MACHINE_AREA/work" overlay "$root"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
case "$MACHINE_CGROUP_MOUNTS" in
    .:*) ;;
    *) mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" ;;
esac
for entry in $MACHINE_CGROUP_MOUNTS; do
    where="$root/sys/fs/cgroup/${entry%%:*}"
    rest="${entry#*:}"
    [ -d "$where" ] || mkdir -p "$where"
    mount -t "${rest%%:*}" ${rest#*:} cgroup "$where"
done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for directory in $MACHINE_BINDS; do
    mkdir -p "$root$directory"
    mount --rbind "$directory" "$root$directory"
done

# Nothing of this machine's own services: only what a unit of ours asks for.
rm -rf "$root/etc/systemd/system" "$root/etc/systemd/user"
mkdir -p "$root/etc/systemd/system" "$root/var/log/journal"
# Its identity, so that the journal of this machine is not written to.
rm -rf "$root/etc/machine-id" "$root/var/log/journal"
: > "$root/etc/machine-id"

cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
/bin/sh -c "$MACHINE_SETUP"
# container=: what a container cannot do is left out. The force is for machines whose cgroups are still of version 1.
exec env -i container=stoker-rig PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 \
    "$MACHINE_SYSTEMD" --system --unit=basic.target --log-target=console --show-status=0
