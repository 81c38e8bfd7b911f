//! Memory that this process may still take, and the limit that says so: the machine, a control group, or an rlimit.
//!
//! ```text
//! /proc/meminfo           MemAvailable                                            the machine
//! /proc/self/cgroup       the control group of this process    }
//! /proc/self/mountinfo    where control groups are mounted     } --> the files of the group and of all its ancestors:
//!   version 2: memory.max, memory.high    minus memory.current without the file cache in memory.stat
//!   version 1: memory.limit_in_bytes, hierarchical_memory_limit    minus memory.usage_in_bytes without the file cache
//! /proc/self/limits       address space (ulimit -v), data (ulimit -d)    minus VmSize, VmData of /proc/self/status
//! ```
//!
//! The smallest counts. Swap does not: a swapping model is unusably slow. The kernel reclaims a group's file cache when
//! memory is short, so it does not count as used.
//!
//! A pure function of file contents: [`headrooms_of`] takes a file reader, so that tests can describe other machines.

use std::fmt;

/// Memory left below one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes that this process may still take.
    pub bytes: u64,
    /// The limit.
    pub limit: Limit,
}

/// A limit on the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Free memory of the machine without swapping.
    Machine,
    /// A control group's limit; the kernel kills processes of a group that exceeds it.
    Group {
        /// The limit.
        bytes: u64,
        /// The file that holds it.
        file: String,
    },
    /// `RLIMIT_AS`: mapped memory, touched or not.
    AddressSpace {
        /// The limit.
        bytes: u64,
    },
    /// `RLIMIT_DATA`: private writable memory, touched or not.
    Data {
        /// The limit.
        bytes: u64,
    },
    /// Memory of a device that is not the host's.
    Device {
        /// All of it.
        bytes: u64,
    },
}

impl Limit {
    /// The limit in bytes; `None` for the machine, whose free memory is not a configured limit.
    pub fn bytes(&self) -> Option<u64> {
        match *self {
            Limit::Machine => None,
            Limit::Group { bytes, .. }
            | Limit::AddressSpace { bytes }
            | Limit::Data { bytes }
            | Limit::Device { bytes } => Some(bytes),
        }
    }
}

/// `memory limit of the control group: 320 MiB`, without its source.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Machine => f.write_str("free memory of the machine"),
            Limit::Group { bytes, .. } => write!(f, "memory limit of the control group: {} MiB", bytes >> 20),
            Limit::AddressSpace { bytes } => write!(f, "address-space limit: {} MiB", bytes >> 20),
            Limit::Data { bytes } => write!(f, "data-segment limit: {} MiB", bytes >> 20),
            Limit::Device { bytes } => write!(f, "memory of the GPU: {} MiB", bytes >> 20),
        }
    }
}

impl Limit {
    /// Where the limit was read, so that the user can find and change it.
    pub fn source(&self) -> &str {
        match self {
            Limit::Machine => "MemAvailable in /proc/meminfo",
            Limit::Group { file, .. } => file,
            Limit::AddressSpace { .. } => "ulimit -v, Max address space in /proc/self/limits",
            Limit::Data { .. } => "ulimit -d, Max data size in /proc/self/limits",
            Limit::Device { .. } => "doctor --device gpu",
        }
    }
}

/// The tightest limit of this process; `None` where the system reports none.
pub fn headroom() -> Option<Headroom> {
    headrooms().into_iter().min_by_key(|headroom| headroom.bytes)
}

/// All limits of this process.
pub fn headrooms() -> Vec<Headroom> {
    headrooms_of(&|path| std::fs::read_to_string(path).ok())
}

/// Bounds what the C library keeps for itself in a process of our own. Heaps of threads: one per CPU, where it would make
/// eight; each that a late thread starts costs some 500 KiB which never return, so a server would still grow after hours.
/// And what is large is mapped by itself for good: the library would learn to take it from its heaps, which then have
/// holes. Call it before a second thread starts.
pub fn bound_heaps() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGE: libc::c_int = 128 << 10;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: sets numbers of the allocator's; a refusal changes nothing.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, libc::c_int::try_from(cpus).unwrap_or(libc::c_int::MAX));
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        }
    }
}

/// Keeps the C library from reserving 64 MiB of address space per thread if that is limited: the KV cache needs it. Call
/// it before a second thread starts; without such a limit it does nothing.
pub fn spare_address_space() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if headrooms().iter().any(|headroom| matches!(headroom.limit, Limit::AddressSpace { .. } | Limit::Data { .. })) {
        // SAFETY: sets a number of the allocator's; a refusal changes nothing.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Makes a write beyond the file-size limit (`ulimit -f`) fail like one to a full disk. By default the kernel ends the
/// process.
pub fn survive_file_size_limit() {
    #[cfg(unix)]
    // SAFETY: ignores a signal, for this process and those that it starts; no handler runs.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN)
    };
}

/// As [`headrooms`], for a process with the files that `read` returns.
pub fn headrooms_of(read: &dyn Fn(&str) -> Option<String>) -> Vec<Headroom> {
    let machine = read("/proc/meminfo").and_then(|text| kib(&text, "MemAvailable:"));
    let machine = machine.map(|bytes| Headroom { bytes, limit: Limit::Machine });
    machine.into_iter().chain(groups(read)).chain(own_limits(read)).collect()
}

/// Parses `Name:   12 kB` to bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The process's resource limits.
fn own_limits(read: &dyn Fn(&str) -> Option<String>) -> Vec<Headroom> {
    let (Some(limits), Some(status)) = (read("/proc/self/limits"), read("/proc/self/status")) else {
        return Vec::new();
    };
    // The first number is the soft limit; "unlimited" does not parse.
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let left = |limit: u64, used: &str| limit.saturating_sub(kib(&status, used).unwrap_or(0));
    let space = soft("Max address space")
        .map(|bytes| Headroom { bytes: left(bytes, "VmSize:"), limit: Limit::AddressSpace { bytes } });
    let data =
        soft("Max data size").map(|bytes| Headroom { bytes: left(bytes, "VmData:"), limit: Limit::Data { bytes } });
    space.into_iter().chain(data).collect()
}

/// File names of a control-group version.
struct Version {
    /// Type of the file system.
    mounted_as: &'static str,
    /// Files with a limit in bytes.
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat` that count the file cache.
    file_cache: [&'static str; 2],
    /// Line of `memory.stat` with the smallest limit of all ancestors, including invisible ones.
    above: Option<&'static str>,
}

const VERSIONS: [Version; 2] = [
    Version {
        mounted_as: "cgroup2",
        limits: &["memory.max", "memory.high"],
        used: "memory.current",
        file_cache: ["inactive_file ", "active_file "],
        above: None,
    },
    Version {
        mounted_as: "cgroup",
        limits: &["memory.limit_in_bytes"],
        used: "memory.usage_in_bytes",
        file_cache: ["total_inactive_file ", "total_active_file "],
        above: Some("hierarchical_memory_limit "),
    },
];

/// Numbers from here on mean no limit: version 1 writes the largest multiple of a page.
const NO_LIMIT: u64 = 1 << 62;

fn groups(read: &dyn Fn(&str) -> Option<String>) -> Vec<Headroom> {
    let (Some(own), Some(mounts)) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo")) else {
        return Vec::new();
    };
    let mut headrooms = Vec::new();
    for version in &VERSIONS {
        let Some(group) = own_group(&own, version) else { continue };
        for mount in mounts.lines().filter_map(Mount::parse).filter(|mount| mount.shows(version)) {
            let Some(below) = below(group, &mount.root) else { continue };
            // From the process's group up to the highest visible one.
            for depth in (0..=below.len()).rev() {
                let parts = below[..depth].iter().flat_map(|part| ["/", part]);
                let directory: String = std::iter::once(mount.point.trim_end_matches('/')).chain(parts).collect();
                headrooms.extend(level(&directory, version, read));
            }
        }
    }
    headrooms
}

/// The group of the process, as a path: `0::/a/b` of version 2, `4:cpu,memory:/a/b` of version 1.
fn own_group<'a>(own: &'a str, version: &Version) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version.above {
            None => number == "0" && controllers.is_empty(),
            Some(_) => controllers.split(',').any(|name| name == "memory"),
        };
        is_it.then_some(path)
    })
}

/// A line of mountinfo.
struct Mount<'a> {
    /// The mounted directory of the file system.
    root: String,
    /// The mount point.
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let mut what = what.split(' ');
        let kind = what.next()?;
        Some(Mount { root, point, kind, options: what.nth(1).unwrap_or_default() })
    }

    fn shows(&self, version: &Version) -> bool {
        let has_memory = || self.options.split(',').any(|option| option == "memory");
        self.kind == version.mounted_as && (version.above.is_none() || has_memory())
    }
}

/// Decodes the octal escapes of blanks and the like in mountinfo: `\040`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let octal = more.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| first == b'\\') {
            Some(byte) => (bytes.push(byte), rest = &more[3..]).1,
            None => (bytes.push(first), rest = more).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The path from the mounted group `root` down to `group`; `None` if it is not below.
///
/// Both are relative to the root of the process's namespace, so a mount from outside of it begins with `..`: then the
/// names in between are unknown, and the mounted group is the only one of them that can be read.
fn below<'a>(group: &'a str, root: &str) -> Option<Vec<&'a str>> {
    let root: Vec<&str> = root.split('/').filter(|part| !part.is_empty()).collect();
    let mut group: Vec<&str> = group.split('/').filter(|part| !part.is_empty()).collect();
    if group.starts_with(&root) {
        group.drain(..root.len());
        return (!group.contains(&"..")).then_some(group);
    }
    let is_above = root.iter().all(|&part| part == "..");
    let outside = group.iter().take_while(|&&part| part == "..").count();
    (is_above && outside < root.len()).then(Vec::new)
}

/// Memory left below the limits in one directory.
fn level(directory: &str, version: &Version, read: &dyn Fn(&str) -> Option<String>) -> Vec<Headroom> {
    let file = |name: &str| format!("{directory}/{name}");
    let number = |name: &str| read(&file(name))?.trim().parse::<u64>().ok();
    let stat = read(&file("memory.stat")).unwrap_or_default();
    let counted = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let cached: u64 = version.file_cache.iter().filter_map(|name| counted(name)).fold(0, u64::saturating_add);
    let used = number(version.used).unwrap_or(0).saturating_sub(cached);
    let own = version.limits.iter().map(|&name| (name, number(name)));
    let above = version.above.map(|name| ("memory.stat", counted(name)));
    let limits = own.chain(above).filter_map(|(name, limit)| Some((name, limit.filter(|&limit| limit < NO_LIMIT)?)));
    let headroom = |(name, bytes): (&str, u64)| Headroom {
        bytes: bytes.saturating_sub(used),
        limit: Limit::Group { bytes, file: file(name) },
    };
    limits.map(headroom).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MEMINFO: &str = "MemTotal:       24576000 kB\nMemFree:  1 kB\nMemAvailable:   12288000 kB\n";
    const UNLIMITED: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max data size             unlimited            unlimited            bytes\n\
        Max address space         unlimited            unlimited            bytes\n";
    const STATUS: &str = "Name:\ttwostroke\nVmPeak:\t  204800 kB\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n";

    /// The tightest limit of a machine with these files.
    fn tightest(files: &[(&str, &str)]) -> (u64, Limit) {
        let base = [("/proc/meminfo", MEMINFO), ("/proc/self/limits", UNLIMITED), ("/proc/self/status", STATUS)];
        let read = |path: &str| {
            let found = files.iter().chain(&base).find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        let headrooms = headrooms_of(&read);
        let headroom = headrooms.into_iter().min_by_key(|headroom| headroom.bytes).expect("the machine at least");
        (headroom.bytes / MIB, headroom.limit)
    }

    fn group(bytes: u64, file: &str) -> Limit {
        Limit::Group { bytes: bytes * MIB, file: file.to_owned() }
    }

    #[test]
    fn without_limits_the_free_memory_counts() {
        assert_eq!(tightest(&[]), (12_000, Limit::Machine));
        // Version 2 without limits, and its root group, which has none of the files.
        let v2 = [
            ("/proc/self/cgroup", "0::/user.slice/session-1.scope\n"),
            ("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.high", "max\n"),
            ("/sys/fs/cgroup/user.slice/session-1.scope/memory.max", "max\n"),
        ];
        assert_eq!(tightest(&v2), (12_000, Limit::Machine));
        let v1 = [
            ("/proc/self/cgroup", "4:memory:/a\n0::/\n"),
            ("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.stat", "hierarchical_memory_limit 9223372036854771712\n"),
        ];
        assert_eq!(tightest(&v1), (12_000, Limit::Machine));
    }

    #[test]
    fn version_2_takes_the_smallest_on_the_way_to_the_root() {
        // systemd: MemoryHigh of the slice binds before MemoryMax of the service.
        let mut files = vec![
            ("/proc/self/cgroup", "0::/system.slice/twostroke.service\n"),
            ("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.high", "1073741824\n"),
            ("/sys/fs/cgroup/system.slice/memory.current", "671088640\n"),
            (
                "/sys/fs/cgroup/system.slice/memory.stat",
                "anon 1\nfile 104857600\ninactive_file 52428800\nactive_file 52428800\n",
            ),
            ("/sys/fs/cgroup/system.slice/twostroke.service/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/system.slice/twostroke.service/memory.high", "max\n"),
            ("/sys/fs/cgroup/system.slice/twostroke.service/memory.current", "104857600\n"),
        ];
        assert_eq!(tightest(&files), (1024 - 640 + 100, group(1024, "/sys/fs/cgroup/system.slice/memory.high")));
        // The process's group binds where its ancestors leave more.
        files.retain(|(name, _)| *name != "/sys/fs/cgroup/system.slice/memory.high");
        assert_eq!(
            tightest(&files),
            (2048 - 100, group(2048, "/sys/fs/cgroup/system.slice/twostroke.service/memory.max"))
        );
    }

    #[test]
    fn containers_see_their_own_group_at_the_mount() {
        let limit = |cgroup: &'static str, mountinfo: &'static str, directory: &str, version: u32| {
            let (limit, used) = match version {
                1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                _ => ("memory.max", "memory.current"),
            };
            let (limit, used) = (format!("{directory}/{limit}"), format!("{directory}/{used}"));
            let found = tightest(&[
                ("/proc/self/cgroup", cgroup),
                ("/proc/self/mountinfo", mountinfo),
                (&limit, "335544320\n"),
                (&used, "20971520\n"),
            ]);
            assert_eq!(found, (300, group(320, &limit)), "{cgroup} {mountinfo}");
        };
        // Docker and Kubernetes, version 2, a namespace of the container's own.
        limit("0::/\n", "1 2 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n", "/sys/fs/cgroup", 2);
        // Docker, version 1: the container's part is mounted, and its path is the host's.
        limit(
            "4:memory:/docker/0a1b\n2:cpu,cpuacct:/docker/0a1b\n",
            "1 2 0:32 /docker/0a1b /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n",
            "/sys/fs/cgroup/memory",
            1,
        );
        // Kubernetes, version 1, controllers mounted together.
        limit(
            "9:cpu,memory:/kubepods/burstable/pod1/0a1b\n",
            "1 2 0:32 /kubepods/burstable/pod1/0a1b /sys/fs/cgroup/cpu,memory ro - cgroup cgroup rw,cpu,memory\n",
            "/sys/fs/cgroup/cpu,memory",
            1,
        );
        // Docker with the host's namespace, version 2.
        limit(
            "0::/system.slice/docker-0a1b.scope\n",
            "1 2 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "/sys/fs/cgroup/system.slice/docker-0a1b.scope",
            2,
        );
        // A mount from outside of the namespace: the names in between are unknown, but its top still binds.
        limit("0::/\n", "1 2 0:26 /../.. /host/cgroup ro - cgroup2 cgroup rw\n", "/host/cgroup", 2);
        limit("0::/../b\n", "1 2 0:26 /.. /host/cgroup ro - cgroup2 cgroup rw\n", "/host/cgroup/b", 2);
        // Hybrid: the memory controller is in version 1; version 2 is mounted without it.
        limit(
            "4:memory:/a/b\n0::/a/b\n",
            "1 2 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             3 2 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             4 2 0:39 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
            "/sys/fs/cgroup/memory/a/b",
            1,
        );
        // A mount point with a blank.
        limit("0::/a\n", "1 2 0:26 / /mnt/my\\040groups rw - cgroup2 none rw\n", "/mnt/my groups/a", 2);
    }

    #[test]
    fn groups_of_others_do_not_count() {
        let files = |cgroup: &'static str, root: &str| {
            let mountinfo = format!("1 2 0:26 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
            let files = [
                ("/proc/self/cgroup", cgroup),
                ("/proc/self/mountinfo", mountinfo.as_str()),
                ("/sys/fs/cgroup/memory.max", "1048576"),
                ("/sys/fs/cgroup/b/memory.max", "1048576"),
            ];
            tightest(&files).1
        };
        assert_eq!(files("0::/a\n", "/b"), Limit::Machine, "another part is mounted");
        assert_eq!(files("0::/../b\n", "/"), Limit::Machine, "the process was moved out of the namespace");
        assert_eq!(files("0::/../../b\n", "/.."), Limit::Machine);
        assert_eq!(files("4:cpu:/b\n", "/"), Limit::Machine, "no such hierarchy");
    }

    #[test]
    fn version_1_knows_the_limits_above_that_cannot_be_seen() {
        let files = [
            ("/proc/self/cgroup", "4:memory:/docker/0a1b\n"),
            ("/proc/self/mountinfo", "1 2 0:32 /docker/0a1b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "125829120\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "inactive_file 1\nhierarchical_memory_limit 335544320\nhierarchical_memsw_limit 1\n\
                 total_inactive_file 62914560\ntotal_active_file 41943040\n",
            ),
        ];
        assert_eq!(tightest(&files), (300, group(320, "/sys/fs/cgroup/memory/memory.stat")));
    }

    #[test]
    fn limits_of_the_process_count_what_is_mapped() {
        let limits = |space: &str, data: &str| {
            let text = format!(
                "Max data size             {data:<20} unlimited            bytes\n\
                 Max address space         {space:<20} unlimited            bytes\n"
            );
            tightest(&[("/proc/self/limits", &text)])
        };
        assert_eq!(limits("1073741824", "unlimited"), (924, Limit::AddressSpace { bytes: 1 << 30 }));
        assert_eq!(limits("unlimited", "629145600"), (550, Limit::Data { bytes: 600 * MIB }));
        assert_eq!(limits("1048576", "unlimited").0, 0, "lowered later than what was taken");
    }

    #[test]
    fn nonsense_is_no_limit() {
        for text in ["", "\n", "0::", ":::", "a b c", "0::/\n\u{fffd}", "1 2 3 4 5 - cgroup2", " - cgroup2 x y"] {
            let files = [("/proc/self/cgroup", text), ("/proc/self/mountinfo", text), ("/proc/self/limits", text)];
            assert_eq!(tightest(&files).1, Limit::Machine, "{text:?}");
        }
        assert_eq!(headrooms_of(&|_| None), []);
    }

    #[test]
    fn this_process_has_headroom() {
        assert!(headroom().is_none_or(|headroom| headroom.bytes > MIB), "{:?}", headrooms());
    }
}
