//! Memory pressure: more is asked for than the KV cache holds, with tiers behind it that work, and that fail in every
//! way a disk can. No request fails, and every answer is the one that the request gets alone.

use crate::common;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Outcome, ask, assert_same, at_once, greedy, options, start, wait_until_quiet};
use engine::{EngineOptions, Prompt, RawRequest, SamplingParams, Stats, Store, SwapDisk};

const BLOCK: u64 = 32;

/// Long requests of different lengths; every third shares the start of its prompt with others.
fn workload() -> Vec<RawRequest> {
    let raw = |index: u64| {
        let len = 200 + 40 * (index % 5);
        let token =
            |at: u64| if index.is_multiple_of(3) && at < 96 { 20 + at % 60 } else { 20 + (at * 7 + index * 13) % 500 };
        RawRequest {
            prompt: Prompt::Tokens((0..len).map(|at| token(at) as i64).collect()),
            sampling: SamplingParams::at(if index.is_multiple_of(2) { 0.0 } else { 0.8 }),
            seed: Some(index as i64),
            logprobs: Some(0),
            ..greedy("", 120 + 10 * (index as i64 % 7))
        }
    };
    (0..if testing::is_long() { 15 } else { 10 }).map(raw).collect()
}

/// Blocks that the whole workload needs at once.
fn needed_blocks() -> u64 {
    let blocks = |raw: &RawRequest| {
        let Prompt::Tokens(prompt) = &raw.prompt else { unreachable!("prompts are tokens") };
        (prompt.len() as u64 + raw.max_tokens.expect("it has one") as u64).div_ceil(BLOCK)
    };
    workload().iter().map(blocks).sum()
}

/// A third of what the workload needs, and room to run it all together.
fn pressed(block_bytes: u64) -> EngineOptions {
    EngineOptions {
        kv_cache_bytes: Some(needed_blocks() / 3 * block_bytes),
        max_num_seqs: 15,
        max_model_len: Some(640),
        ..options()
    }
}

fn waste(stats: &Stats) -> f64 {
    stats.recomputed_tokens as f64 / stats.prefill_tokens as f64
}

/// A disk in memory that does what it is told to.
#[derive(Debug, Default)]
struct BadDisk {
    bytes: Mutex<Vec<u8>>,
    calls: AtomicU64,
    faults: AtomicU64,
    fault: Option<(u64, Fault)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    NoSpace,
    BadWrite,
    BadRead,
    ShortWrite,
    BitFlip,
}

impl BadDisk {
    /// Every `every`th call has the fault, if it can.
    fn with(every: u64, fault: Fault) -> Arc<BadDisk> {
        Arc::new(BadDisk { fault: Some((every, fault)), ..BadDisk::default() })
    }

    fn fails(&self, one_of: &[Fault]) -> Option<Fault> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let (every, fault) = self.fault?;
        let fails = call.is_multiple_of(every) && one_of.contains(&fault);
        self.faults.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails.then_some(fault)
    }
}

impl Store for BadDisk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let fault = self.fails(&[Fault::NoSpace, Fault::BadWrite, Fault::ShortWrite]);
        let mut disk = self.bytes.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if disk.len() < end {
            disk.resize(end, 0);
        }
        match fault {
            Some(Fault::NoSpace) => return Err(io::Error::from_raw_os_error(28)),
            Some(Fault::BadWrite) => return Err(io::Error::from_raw_os_error(5)),
            // A disk that lies: it says that all is well.
            Some(_) => disk[start..start + bytes.len() / 2].copy_from_slice(&bytes[..bytes.len() / 2]),
            None => disk[start..end].copy_from_slice(bytes),
        }
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let fault = self.fails(&[Fault::BadRead, Fault::BitFlip]);
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        match fault {
            Some(Fault::BadRead) => return Err(io::Error::from_raw_os_error(5)),
            Some(_) => bytes[offset as usize % 1000] ^= 16,
            None => {}
        }
        Ok(())
    }
}

#[test]
fn three_times_more_than_the_cache_holds_fails_no_request_and_changes_no_answer() {
    let roomy = start(&EngineOptions { max_num_seqs: 15, max_model_len: Some(640), ..options() });
    let block_bytes = BLOCK * roomy.model().kv_bytes_per_token as u64;
    let want: Vec<Outcome> = workload().into_iter().map(|raw| ask(&roomy, raw)).collect();
    drop(roomy);
    let base = pressed(block_bytes);
    let all = needed_blocks() * block_bytes;
    let directory = std::env::temp_dir();
    let disk = Some(SwapDisk { directory, bytes: all });
    let on_disk = EngineOptions { kv_swap_disk: disk, ..base.clone() };
    let bad = |every, fault| {
        let store = BadDisk::with(every, fault);
        (EngineOptions { kv_swap_store: Some(store.clone()), ..on_disk.clone() }, Some(store))
    };
    let cases = [
        ("no tiers", (base.clone(), None)),
        ("host memory", (EngineOptions { kv_swap_bytes: all, ..base }, None)),
        ("disk", (on_disk.clone(), None)),
        ("disk, full now and then", bad(5, Fault::NoSpace)),
        ("disk, all writes fail", bad(1, Fault::BadWrite)),
        ("disk, reads fail now and then", bad(3, Fault::BadRead)),
        ("disk, all reads fail", bad(1, Fault::BadRead)),
        ("disk, writes are cut short without an error", bad(4, Fault::ShortWrite)),
        ("disk, bits flip", bad(5, Fault::BitFlip)),
    ];
    for (what, (options, store)) in testing::part_of(cases, 3) {
        let engine = start(&options);
        assert_same(what, &at_once(&engine, workload()), &want);
        if store.is_none() {
            // Again: the prefix cache holds more than the KV cache now.
            assert_same(what, &at_once(&engine, workload()), &want);
        }
        wait_until_quiet(&engine);
        let stats = engine.stats();
        println!(
            "{what}: {} preemptions, {:.1} % of {} prefill rows recomputed, {:?}",
            stats.preemptions,
            waste(&stats) * 100.0,
            stats.prefill_tokens,
            stats.swap
        );
        // How often depends on what moving and computing cost; a case that presses nothing would mean nothing.
        assert!(stats.preemptions >= 1, "{what}: the case must press the cache to mean anything");
        match what {
            "no tiers" => assert!(stats.swap.saved == 0 && waste(&stats) > 0.05, "{what}"),
            "host memory" => assert!(stats.swap.loaded_from_host > 50 && waste(&stats) < 0.1, "{what}"),
            "disk" => assert!(stats.swap.loaded_from_disk > 50 && waste(&stats) < 0.1, "{what}"),
            _ => {
                let faults = store.expect("it counts").faults.load(Ordering::Relaxed);
                assert!(faults > 0 && stats.swap.read_faults + stats.swap.write_faults > 0, "{what}: {faults} faults");
            }
        }
        assert!(!what.starts_with("disk, all") || stats.swap.disk_given_up, "{what}: it is given up");
    }
}
