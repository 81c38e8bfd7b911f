//! A model without weights: what a row's logits are follows from the tokens that its cache holds, and from nothing
//! else.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernels::limits::MeasureError;
use kernels::sampling::{Candidate, find_best};
use kernels::threads::LostCpuTime;
use kernels::{DeviceError, DeviceInfo, DeviceLimits, HostBuffer, Isa};
use model::{Batch, Forward, Logits, ModelConfig, Ticket};

/// Tokens of the vocabulary. The last ones are letters that break things.
pub(super) const VOCAB: usize = 24;
/// A row of this token panics in the pass, each time.
pub(super) const POISON: u32 = 23;
/// The logits behind this token are no numbers.
pub(super) const NAN: u32 = 22;
pub(super) const EOS: u32 = 0;
/// How a panic that was asked for begins.
pub(super) const PLANNED: &str = "planned:";

/// The calls at which a device can be found lost.
pub(super) const DOORS: [&str; 4] = ["launch", "wait", "read_logits", "submit"];

/// What goes wrong, and when: by the number of the call.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) computes: u64,
    /// This pass panics, and if it is made again it does not.
    pub(super) panic_at: Option<u64>,
    /// As `panic_at`, in the head.
    pub(super) panic_in_logits_at: Option<u64>,
    /// The next copy of blocks panics.
    pub(super) panic_in_copy: bool,
    /// The device is lost when this is called next.
    pub(super) lose_at: Option<&'static str>,
    /// Devices that were, and how long the last one's standby takes to load.
    pub(super) devices_lost: u64,
    pub(super) move_takes: u64,
    /// A panic that was asked for came.
    pub(super) came: bool,
    /// Logits were read that are no longer kept.
    pub(super) lost_logits: bool,
    /// A drafter read what it did not write for that prefix.
    pub(super) misread: bool,
    /// The prefixes of all rows, where a test compares them.
    pub(super) prefixes: Option<BTreeSet<u64>>,
    /// Nanoseconds that a pass takes, and that a row adds.
    pub(super) pass: u64,
    pub(super) row: u64,
    /// Nanoseconds that the machine takes of the next pass.
    pub(super) theft: u64,
    /// Stolen time since it was last asked for, and in all.
    pub(super) lost: u64,
    pub(super) all_lost: u64,
}

/// One position of the cache: the token there, and a hash of all up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    token: u32,
    hash: u64,
}

/// How a drafter's logits differ from its target's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errors {
    /// Percent of rows with another prefix's logits, and with NaN.
    pub(super) wrong: u64,
    pub(super) nan: u64,
    /// Rows of a pass at most.
    pub(super) most_rows: usize,
}

pub(super) struct Fake {
    config: ModelConfig,
    /// Set for a draft model: letters that break a target break nothing here.
    drafts: Option<Errors>,
    block_size: usize,
    cells: Vec<Cell>,
    /// Kept for its memory: the rows of a pass.
    rows: Vec<Cell>,
    /// Of the newest passes, the oldest first: hashes of their rows of logits, and their tokens.
    hidden: VecDeque<(u64, Vec<Cell>, Vec<u32>)>,
    /// How many of them.
    passes: usize,
    faults: Arc<Mutex<Faults>>,
    clock: Arc<AtomicU64>,
    is_lost: AtomicBool,
}

pub(super) fn config() -> ModelConfig {
    let text = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 24, "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-05, "hidden_act": "silu",
        "tie_word_embeddings": true, "eos_token_id": 0}"#;
    ModelConfig::parse(text).expect("a configuration")
}

/// `hash` of a prefix, one token longer.
pub(super) fn grow(hash: u64, token: u32) -> u64 {
    mix(hash ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What follows a prefix that ends with `token`. Letters that break things are rare.
pub(super) fn logits(hash: u64, token: u32, out: &mut [f32]) {
    for (id, logit) in out.iter_mut().enumerate() {
        *logit = (mix(hash ^ ((id as u64) << 40)) % 1000) as f32 / 250.0;
        if id as u32 >= NAN {
            *logit -= 1.0;
        }
    }
    if token == NAN {
        out[3] = f32::NAN;
    }
}

impl Fake {
    pub(super) fn new(blocks: usize, block_size: usize, faults: Arc<Mutex<Faults>>, clock: Arc<AtomicU64>) -> Fake {
        let cells = vec![Cell::default(); blocks * block_size];
        let (rows, hidden) = (Vec::new(), VecDeque::from([(0, Vec::new(), Vec::new())]));
        Fake {
            config: config(),
            drafts: None,
            block_size,
            cells,
            rows,
            hidden,
            passes: 1,
            faults,
            clock,
            is_lost: AtomicBool::new(false),
        }
    }

    /// Makes it a draft model.
    pub(super) fn drafting(mut self, errors: Errors) -> Fake {
        self.drafts = Some(errors);
        self
    }

    /// Passes that are launched before the first is waited for.
    pub(super) fn with_passes(mut self, passes: usize) -> Fake {
        self.passes = passes;
        self.hidden = (0..passes).map(|_| (0, Vec::new(), Vec::new())).collect();
        self
    }

    /// Every door is closed once one was.
    fn pass_door(&self, door: &'static str) -> Result<(), DeviceError> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.lose_at.take_if(|at| *at == door).is_some() {
            faults.devices_lost += 1;
            // Blocks are saved behind a step whose tokens clients have, and they look at their clocks later.
            faults.move_takes = if door == "submit" { 0 } else { 3_000_000 };
            self.is_lost.store(true, Ordering::Relaxed);
        }
        match self.is_lost.load(Ordering::Relaxed) {
            true => Err(DeviceError::Lost { device: "a hash".to_owned(), what: format!("at {door}") }),
            false => Ok(()),
        }
    }

    /// The hash of `positions` tokens, read as attention reads them: each from its own place.
    fn prefix(&self, table: &[u32], positions: usize) -> u64 {
        let mut hash = 0;
        for position in 0..positions {
            let cell =
                self.cells[table[position / self.block_size] as usize * self.block_size + position % self.block_size];
            hash = grow(hash, cell.token);
            match &self.drafts {
                None => assert_eq!(cell.hash, hash, "a row reads position {position}, which another wrote"),
                Some(_) if cell.hash == hash => {}
                // A panic would only end its drafts.
                Some(_) => self.faults.lock().unwrap_or_else(PoisonError::into_inner).misread = true,
            }
        }
        hash
    }
}

impl Forward for Fake {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn passes_in_flight(&self) -> usize {
        self.passes
    }

    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError> {
        self.pass_door("launch")?;
        let (pass, time, planned) = {
            let mut faults = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            faults.computes += 1;
            let computes = faults.computes;
            let planned = faults.panic_at.take_if(|at| *at <= computes).is_some();
            faults.came |= planned;
            let theft = std::mem::take(&mut faults.theft);
            faults.lost += theft;
            faults.all_lost += theft;
            (computes, faults.pass + faults.row * batch.token_ids.len() as u64 + theft, planned)
        };
        self.clock.fetch_add(time, Ordering::Relaxed);
        if let Some(Errors { most_rows, .. }) = self.drafts {
            let num_rows = batch.token_ids.len();
            assert!(num_rows <= most_rows, "{num_rows} rows in a pass of {most_rows}");
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        rows.resize(batch.token_ids.len(), Cell::default());
        // What a pass writes before it fails is undefined: here, the first half of it.
        let half = if planned { batch.token_ids.len() / 2 } else { batch.token_ids.len() };
        for span in &batch.spans {
            let table = &batch.block_tables[span.table.start as usize..span.table.end as usize];
            let mut hash = self.prefix(table, span.start as usize);
            let (first, count) = (span.first_row as usize, span.num_rows as usize);
            for (row, cell) in rows.iter_mut().enumerate().skip(first).take(count) {
                if row >= half {
                    std::panic::panic_any(PLANNED);
                }
                let token = batch.token_ids[row];
                if token == POISON && self.drafts.is_none() {
                    std::panic::panic_any(PLANNED);
                }
                hash = grow(hash, token);
                *cell = Cell { token, hash };
                self.cells[batch.slots[row] as usize] = *cell;
            }
        }
        if let Some(prefixes) = &mut self.faults.lock().unwrap_or_else(PoisonError::into_inner).prefixes {
            prefixes.extend(rows.iter().map(|cell| cell.hash));
        }
        let (_, mut hidden, mut best) = self.hidden.pop_front().expect("at least one is kept");
        hidden.clear();
        hidden.extend(batch.logit_rows.iter().map(|&row| rows[row as usize]));
        self.rows = rows;
        let ticket = Ticket::new(pass, hidden.len());
        best.clone_from(&batch.best);
        self.hidden.push_back((pass, hidden, best));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError> {
        self.pass_door("wait")?;
        Ok(ticket.done())
    }

    fn read_logits(&mut self, pass: &Logits, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.pass_door("read_logits")?;
        let mut faults = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let computes = faults.computes;
        let kept = self.hidden.iter().find(|(kept, ..)| *kept == pass.pass());
        faults.lost_logits |= kept.is_none();
        let planned = faults.panic_in_logits_at.take_if(|at| *at <= computes).is_some();
        faults.came |= planned;
        drop(faults);
        if planned {
            std::panic::panic_any(PLANNED);
        }
        let cell = kept.expect("its logits are kept").1[row];
        match self.drafts {
            Some(Errors { nan, .. }) if mix(cell.hash ^ 1) % 100 < nan => out.fill(f32::NAN),
            Some(Errors { wrong, .. }) if mix(cell.hash ^ 2) % 100 < wrong => logits(!cell.hash, cell.token, out),
            _ => logits(cell.hash, cell.token, out),
        }
        Ok(())
    }

    fn read_best(&mut self, pass: &Logits, row: usize, out: &mut Vec<Candidate>) -> Result<bool, DeviceError> {
        let kept = self.hidden.iter().find(|(kept, ..)| *kept == pass.pass());
        let count = kept.and_then(|(.., best)| best.get(row)).copied().unwrap_or(0);
        let mut logits = [0.0; VOCAB];
        if count > 0 {
            self.read_logits(pass, row, &mut logits)?;
            find_best(&logits, count as usize, out);
        }
        Ok(count > 0)
    }

    fn set_compute_thread(&self) {}

    fn lost(&self) -> Option<LostCpuTime> {
        let mut faults = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let lost = Duration::from_nanos(std::mem::take(&mut faults.lost));
        Some(LostCpuTime { caller: lost, most: lost, delay: [lost; 2] })
    }

    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        let mut faults = self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fails = std::mem::take(&mut faults.panic_in_copy);
        faults.came |= fails;
        drop(faults);
        if fails {
            std::panic::panic_any(PLANNED);
        }
        for &(from, to) in copies {
            let (from, to) = (from as usize * self.block_size, to as usize * self.block_size);
            self.cells.copy_within(from..from + self.block_size, to);
        }
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer> {
        Arc::new(bytes)
    }

    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        let out = (to as &mut dyn Any).downcast_mut::<Vec<u8>>().expect("a buffer of ours");
        let first = block as usize * self.block_size;
        for (cell, out) in self.cells[first..first + self.block_size].iter().zip(out.chunks_mut(12)) {
            out[..4].copy_from_slice(&cell.token.to_le_bytes());
            out[4..].copy_from_slice(&cell.hash.to_le_bytes());
        }
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.pass_door("submit")
    }

    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        let bytes = from.bytes().expect("what is here is not lost");
        let first = block as usize * self.block_size;
        for (cell, bytes) in self.cells[first..first + self.block_size].iter_mut().zip(bytes.chunks(12)) {
            cell.token = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
            cell.hash = u64::from_le_bytes(bytes[4..].try_into().expect("eight bytes"));
        }
    }

    fn block_bytes(&self) -> usize {
        12 * self.block_size
    }

    fn weight_bytes(&self) -> usize {
        1
    }

    fn expert_bytes(&self) -> usize {
        0
    }

    fn kv_bytes_per_token(&self) -> usize {
        12
    }

    fn describe(&self) -> String {
        "a hash".to_owned()
    }

    fn device(&self) -> DeviceInfo {
        DeviceInfo::cpu(Isa::Scalar, 1)
    }

    fn limits(&self, _: f64) -> Result<DeviceLimits, MeasureError> {
        unreachable!("no test measures a hash")
    }
}
