//! What the operating system says about this machine, mostly in `/proc` and `/sys`; what is not there is `None`, never
//! an estimate.

use std::fs;
use std::path::Path;

use kernels::memory_limits::Limit;

/// One level of cache, as core 0 sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// `L1d`, `L1i`, `L2`, `L3`.
    pub name: String,
    /// Of one instance.
    pub bytes: u64,
    /// Cores that share one instance.
    pub shared_by: usize,
}

/// The caches of core 0, smallest first.
pub fn caches() -> Vec<Cache> {
    let mut caches = Vec::new();
    for index in 0..16 {
        let directory = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |file: &str| fs::read_to_string(format!("{directory}/{file}")).ok();
        let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size")) else { continue };
        let Some(bytes) = parse_size(size.trim()) else { continue };
        let suffix = match kind.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        let shared_by = read("shared_cpu_list").map_or(1, |list| count_cpu_list(list.trim()));
        caches.push(Cache { name: format!("L{}{suffix}", level.trim()), bytes, shared_by });
    }
    caches
}

/// Bytes that may still be written in the directory of `path`.
pub fn free_space(path: &Path) -> Option<u64> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = nix::sys::statvfs::statvfs(parent).ok()?;
    found.blocks_available().checked_mul(found.fragment_size())
}

/// The CPU's name in words; on AArch64, where the system has none, its numbers.
pub fn cpu_name() -> Option<String> {
    name_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn name_in(info: &str) -> Option<String> {
    let value =
        |key: &str| info.lines().find(|line| line.starts_with(key))?.split_once(':').map(|(_, value)| value.trim());
    match (value("model name"), value("CPU implementer"), value("CPU part")) {
        (Some(name), ..) => Some(name.to_string()),
        (None, Some(maker), Some(part)) => Some(format!("AArch64, implementer {maker}, part {part}")),
        _ => None,
    }
}

/// Features that decide how fast a machine of this one's kind is, and whether it has them.
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    features_in(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn features_in(info: &str) -> Vec<(&'static str, bool)> {
    const X86: [&str; 13] = [
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
    ];
    const AARCH64: [&str; 3] = ["asimddp", "i8mm", "bf16"];
    let line = |key: &str| info.lines().find(|line| line.starts_with(key));
    let (wanted, flags): (&[_], _) = match line("Features") {
        Some(flags) => (&AARCH64, flags),
        None => (&X86, line("flags").unwrap_or_default()),
    };
    let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
    wanted.iter().map(|&name| (name, has(name))).collect()
}

/// CPUs that are switched on.
pub fn online_cpus() -> Option<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(count_cpu_list(list.trim()))
}

/// Cores' worth of time that the control group (version 2) allows; `None` without a limit.
pub fn cgroup_cores() -> Option<f64> {
    parse_cpu_max(&fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?)
}

/// Memory nodes (NUMA).
pub fn numa_nodes() -> usize {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 1 };
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count().max(1)
}

/// Bytes of memory: all, and what this process can have of it without swapping and within its limits.
pub fn memory() -> Option<(u64, u64)> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    Some((meminfo(&info, "MemTotal")?, kernels::memory_limits::headroom()?.bytes))
}

/// The tightest limit that is set on this process's memory: a control group's or its own.
pub fn memory_limit() -> Option<Limit> {
    let set = kernels::memory_limits::headrooms().into_iter().filter(|room| room.limit != Limit::Machine);
    set.min_by_key(|room| room.bytes).map(|room| room.limit)
}

/// Policy of transparent huge pages: `always`, `madvise` or `never`.
pub fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split('[').nth(1)?.split(']').next()?;
    Some(chosen.to_string())
}

/// Whether a directory, or the nearest one above it that exists, can be written to.
pub fn can_write(path: &Path) -> bool {
    let existing = path.ancestors().find(|ancestor| ancestor.is_dir());
    existing.is_some_and(|directory| fs::metadata(directory).is_ok_and(|m| !m.permissions().readonly()))
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `48K`, `2048K`, `32M`.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// How many CPUs `0-2,8` names.
fn count_cpu_list(list: &str) -> usize {
    let span = |part: &str| -> Option<usize> {
        match part.split_once('-') {
            Some((low, high)) => (high.parse::<usize>().ok()? + 1).checked_sub(low.parse().ok()?),
            None => part.parse::<usize>().ok().map(|_| 1),
        }
    };
    list.split(',').filter_map(span).sum()
}

/// `200000 100000` is two cores; `max 100000` is no limit.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_notations_are_understood() {
        assert_eq!([parse_size("48K"), parse_size("32M"), parse_size("x")], [Some(48 << 10), Some(32 << 20), None]);
        assert_eq!([count_cpu_list("0-2,8"), count_cpu_list("5"), count_cpu_list("")], [4, 1, 0]);
        assert_eq!([parse_cpu_max("250000 100000\n"), parse_cpu_max("max 100000")], [Some(2.5), None]);
        assert_eq!(meminfo("MemTotal:   16 kB\nMemAvailable:  8 kB\n", "MemAvailable"), Some(8192));
    }

    #[test]
    fn a_cpu_is_named_by_words_or_by_numbers() {
        let x86 = "model name\t: A CPU\nflags\t\t: fpu avx2 fma\n";
        let arm = "Features\t: fp asimd asimddp bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        let names = [x86, arm, ""].map(name_in);
        assert_eq!(names, [Some("A CPU".into()), Some("AArch64, implementer 0x41, part 0xd40".into()), None]);
        assert_eq!(features_in(arm), [("asimddp", true), ("i8mm", false), ("bf16", true)]);
        let features = features_in(x86);
        assert!(features.contains(&("avx2", true)) && features.contains(&("amx_tile", false)), "{features:?}");
    }
}
