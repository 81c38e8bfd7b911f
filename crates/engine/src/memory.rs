//! How much memory this process may take: the smaller of what the machine has free and what the control group allows.

use std::fs;

/// Bytes that can be allocated without swapping, or `None` where the system does not say.
pub fn available_bytes() -> Option<u64> {
    let free = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let limit = cgroup_room();
    Some(limit.map_or(free, |limit| limit.min(free)))
}

fn meminfo_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the control group (version 2) leaves, if it sets a limit.
fn cgroup_room() -> Option<u64> {
    let read = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       24576000 kB\nMemFree:  1 kB\nMemAvailable:   12288000 kB\n";
        assert_eq!(meminfo_available(meminfo), Some(12_288_000 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
    }
}
