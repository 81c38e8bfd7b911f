//! The cores that this process may use, and thread pinning.

/// Maximum threads of a pool: cores in the affinity mask, or fewer by cgroup quota.
pub fn max_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Default threads of a pool: one per allowed physical core, since two hyperthreads of one core share its vector units
/// and its bandwidth.
pub fn default_threads() -> usize {
    let cpus = allowed_cpus();
    let cores = cpus.iter().filter(|&&cpu| first_sibling(cpu, &cpus)).count();
    match cores {
        0 => max_threads(),
        cores => cores.min(max_threads()),
    }
}

/// Whether `cpu` is the lowest allowed hyperthread of its core.
pub(super) fn first_sibling(cpu: usize, allowed: &[usize]) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let Ok(siblings) = std::fs::read_to_string(path) else { return true };
    parse_cpu_list(&siblings).into_iter().find(|sibling| allowed.contains(sibling)).is_none_or(|lowest| lowest == cpu)
}

/// Parses `0-2,8` to 0 1 2 8; skips parts that are not numbers.
pub(super) fn parse_cpu_list(list: &str) -> Vec<usize> {
    let parse = |text: &str| text.trim().parse::<usize>().ok();
    list.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((low, high)) => Some(parse(low)?..=parse(high)?),
            None => parse(part).map(|cpu| cpu..=cpu),
        })
        .flatten()
        .collect()
}

#[cfg(target_os = "linux")]
pub(super) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a cpu_set_t of zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: every index is below the set's capacity.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[cfg(target_os = "linux")]
pub(super) fn pin_this_thread(cpu: usize) {
    // SAFETY: as in `allowed_cpus`; `cpu` came from there.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set); // a refusal costs speed only
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin_this_thread(_cpu: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_of_the_kernel_are_understood() {
        assert_eq!(parse_cpu_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_cpu_list("3"), [3]);
        assert_eq!(parse_cpu_list(""), [] as [usize; 0]);
    }
}
