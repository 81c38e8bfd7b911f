//! `twostroke render-templates`: the child process that compiles and runs a model's chat template. Not meant to be
//! called by hand.
//!
//! The program starts itself with this verb (`text::chat_template` says why), and the child puts limits on itself
//! before it reads its first byte: memory, time, no files, no more rights, and an end when the one that started it
//! ends.

use std::io;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use text::chat_template::{MAX_RENDER_MEMORY, MAX_RENDER_TIME, RENDER_STACK_BYTES, serve_renderings};

use crate::failure::Failure;

pub(crate) fn render() -> Result<(), Failure> {
    confine().map_err(|error| Failure::failed(format!("a limit of this process could not be set: {error}")))?;
    serve_renderings(io::stdin(), io::stdout(), more_time).map_err(Failure::failed)
}

/// Everything that a template could use up or reach for, bounded by the kernel.
#[cfg(target_os = "linux")]
fn confine() -> nix::Result<()> {
    use nix::sys::prctl;
    use nix::sys::signal::Signal;

    close_inherited();
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prctl::set_no_new_privs()?;
    // No core file, and no reading of this process's memory by others of the same user.
    prctl::set_dumpable(false)?;
    limit(Resource::RLIMIT_CORE, 0)?;
    // Where memory ends for all, this process goes first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let program = address_space();
    limit(Resource::RLIMIT_FSIZE, 0)?;
    limit(Resource::RLIMIT_NOFILE, 0)?;
    limit(Resource::RLIMIT_AS, program + RENDER_STACK_BYTES + MAX_RENDER_MEMORY)
}

/// Memory is bounded where the system can do that.
#[cfg(not(target_os = "linux"))]
fn confine() -> nix::Result<()> {
    limit(Resource::RLIMIT_CORE, 0)?;
    limit(Resource::RLIMIT_FSIZE, 0)?;
    limit(Resource::RLIMIT_AS, (1 << 30) + RENDER_STACK_BYTES + MAX_RENDER_MEMORY)
}

/// Sets a limit for good, or leaves a lower one that the parent process has set.
fn limit(resource: Resource, most: u64) -> nix::Result<()> {
    let most = most.min(getrlimit(resource)?.1);
    setrlimit(resource, most, most)
}

/// Bytes of address space that the program itself takes; 64 MiB where the system does not tell.
#[cfg(target_os = "linux")]
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages.zip(page).map_or(64 << 20, |(pages, page)| pages * page.unsigned_abs())
}

/// Closes descriptors that the parent process left open: this program opens none that a child inherits.
#[cfg(target_os = "linux")]
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // The one of the listing is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

/// The limit of processor time counts from the start of the process, in whole seconds: it moves on with each rendering,
/// which has its time and up to a second more.
fn more_time() {
    let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) else { return };
    let used = used.user_time() + used.system_time();
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CPU) else { return };
    let most = used.tv_sec().unsigned_abs() + 1 + MAX_RENDER_TIME.as_secs();
    let _ = setrlimit(Resource::RLIMIT_CPU, hard.min(most), hard);
}
