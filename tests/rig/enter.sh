#!/bin/sh
# Make the namespaces of a node and hold them. Run by tests/rig/node.py, in two steps:
#   enter.sh            joins the node's cgroup, then runs itself again in new namespaces
#   enter.sh inside     mounts the node's root and becomes `sleep infinity`, which holds everything
# Everything comes by environment:
#   NODE_NAME NODE_NETWORK (own|host) NODE_LOWER (the cached root) NODE_AREA (an empty directory)
#   NODE_CGROUP_ROOTS NODE_CGROUP_LEAVES (cgroup.procs files) NODE_CGROUP_MOUNTS (dir:type:options ...)
#   NODE_RUN_DIR NODE_DATA_DIR (the same path inside) NODE_CNI_DIR NODE_HIDE (programs to remove) NODE_READY (marker)
set -eu

if [ "${1:-}" != inside ]; then
    for file in $NODE_CGROUP_ROOTS; do echo $$ > "$file"; done
    set -- --mount --uts --cgroup --propagation private
    if [ "$NODE_NETWORK" = own ]; then set -- "$@" --net; fi
    exec unshare "$@" -- /bin/sh "$0" inside
fi

for file in $NODE_CGROUP_LEAVES; do echo $$ > "$file"; done
hostname "$NODE_NAME" 2>/dev/null || echo "$NODE_NAME" > /proc/sys/kernel/hostname

if [ "$NODE_NETWORK" = own ]; then
    ip link set lo up
    echo 1 > /proc/sys/net/ipv4/ip_forward
    # Ports that the machine picks for listeners are above these, so a relay's port is never taken in here.
    echo "20000 29999" > /proc/sys/net/ipv4/ip_local_port_range
fi

# The root: the cached one below, a tmpfs of this node above. Nothing of it outlives the mount namespace.
mount -t tmpfs -o mode=755,size=4g tmpfs "$NODE_AREA"
root="$NODE_AREA/root"
mkdir "$NODE_AREA/upper" "$NODE_AREA/work" "$root"
mount -t overlay -o "lowerdir=$NODE_LOWER,upperdir=$NODE_AREA/upper,workdir=$NODE_AREA/work" overlay "$root"

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
# A sysfs of this network namespace: /sys/class/net shows the node's own links.
mount -t sysfs sysfs "$root/sys"
case "$NODE_CGROUP_MOUNTS" in
    .:*) ;;
    *) mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" ;;
esac
for entry in $NODE_CGROUP_MOUNTS; do
    where="$root/sys/fs/cgroup/${entry%%:*}"
    rest="${entry#*:}"
    [ -d "$where" ] || mkdir -p "$where"
    mount -t "${rest%%:*}" ${rest#*:} cgroup "$where"
done

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root$NODE_RUN_DIR" "$root$NODE_DATA_DIR" "$root/etc/cni/net.d" "$root/run/lock"
mount --bind "$NODE_RUN_DIR" "$root$NODE_RUN_DIR"
mount --rbind "$NODE_DATA_DIR" "$root$NODE_DATA_DIR"
mount --bind "$NODE_CNI_DIR" "$root/etc/cni/net.d"
echo "$NODE_NAME" > "$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$NODE_NAME" > "$root/etc/hosts"
for program in $NODE_HIDE; do rm -f "$root/usr/bin/$program"; done

cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
# What containerd and runc mount must reach each other, and end with this namespace.
mount --make-rshared /
: > "$NODE_READY"
exec sleep infinity
