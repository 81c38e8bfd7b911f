#!/bin/sh
# Boots the system below $1, in namespaces and control groups of its own, the latter named $2: systemd is the first process
# there. The network is that of the machine.
set -eu
root=$1 group=$2

# The hierarchies that systemd works with: the one of version 2, or those of both versions beside each other.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    if [ -e "$hierarchy/cgroup.procs" ]; then
        mkdir -p "$hierarchy/$group"
        echo $$ > "$hierarchy/$group/cgroup.procs"
    fi
done
# shellcheck disable=SC2016
exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -euc '
    mount --make-rprivate /
    mount --bind "$0" "$0"
    mount -t proc proc "$0/proc"
    mount -t sysfs -o ro sysfs "$0/sys"
    if [ -e /sys/fs/cgroup/cgroup.procs ]; then
        mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
    else
        mount -t tmpfs tmpfs "$0/sys/fs/cgroup"
        mkdir "$0/sys/fs/cgroup/systemd" "$0/sys/fs/cgroup/unified"
        mount -t cgroup -o none,name=systemd,xattr cgroup "$0/sys/fs/cgroup/systemd"
        mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup/unified"
    fi
    mount -t tmpfs tmpfs "$0/run"
    mount -t tmpfs tmpfs "$0/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$0/dev"
    for device in null zero full random urandom tty; do
        touch "$0/dev/$device"
        mount --bind "/dev/$device" "$0/dev/$device"
    done
    mkdir "$0/dev/shm" "$0/dev/pts"
    mount -t tmpfs tmpfs "$0/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts"
    ln -s pts/ptmx "$0/dev/ptmx"
    hostname twostroke-check
    # Not by chroot alone: what has changed its root so may not make namespaces of users, which services ask for.
    cd "$0"
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
' "$root"
