//! A model that notices everything, its cache, and what an answer is when it runs alone.
//!
//! ```text
//! slot of token p    [ hash of (salt, tokens 0..=p) for each layer ]      the fingerprint model's keys and values
//! row p              writes its slot, then reads slots 0..=p through the block table:
//!                    each must hold the fingerprint of its own prefix; the next token is a function of all of them
//! state slot         [ hash of (salt, tokens before the first row) ], read before the step writes any
//! ```

use std::collections::{BTreeMap, BTreeSet};

use protocol::{FinishReason, RequestId, TokenId};
use scheduler::{BlockLoad, BlockSave, Request, RowOutput, SeqId, SlotSpill, TierSlot};

fn finalize(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    finalize(a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0x632B_E59B_D9B4_E019))
}

/// Everything that happened, as one number: text is folded in as it is written.
pub(crate) struct Trace(pub u64);

impl std::fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = mix(self.0, u64::from_le_bytes(word));
        }
        Ok(())
    }
}

const LAYERS: usize = 2;
pub(crate) const EOS: TokenId = 1;

pub(crate) type Slot = [u64; LAYERS];
const UNWRITTEN: Slot = [0; LAYERS];

/// What the slot of the last token of this prefix must hold.
fn fingerprint(prefix: u64) -> Slot {
    core::array::from_fn(|layer| mix(prefix, layer as u64 + 1))
}

fn extend_prefix(prefix: u64, token: TokenId) -> u64 {
    mix(prefix, u64::from(token) + 100)
}

fn root(salt: u64) -> u64 {
    mix(salt, 42)
}

/// What the block that ends these tokens must hold.
pub(crate) fn block_of(salt: u64, tokens: &[TokenId], block_size: usize) -> Vec<Slot> {
    let mut prefix = root(salt);
    let slots = tokens.iter().map(|&token| {
        prefix = extend_prefix(prefix, token);
        fingerprint(prefix)
    });
    slots.skip(tokens.len() - block_size).collect()
}

fn read(readout: u64, slot: Slot) -> u64 {
    slot.into_iter().fold(readout, mix)
}

/// The sampler: keyed by the request's seed, the answer and the position, never by the batch.
fn sample(readout: u64, seed: u64, answer: usize, position: usize) -> TokenId {
    (mix(mix(readout, seed), mix(answer as u64, position as u64)) % 30) as TokenId
}

/// The bytes that block ids point into.
pub(crate) struct FingerprintCache {
    slots: Vec<Slot>,
    block_size: usize,
    /// Of a model with states.
    states: Vec<u64>,
    /// The bytes of the tiers.
    tiers: BTreeMap<TierSlot, Vec<Slot>>,
    /// A planted bug: drafts are taken for what was drawn.
    pub(crate) accepts_unseen: bool,
}

/// A row of the batch: everything the model needs, taken from the scheduler when the step was planned.
pub(crate) struct LoweredRows {
    pub(crate) seq: SeqId,
    pub(crate) request: RequestId,
    pub(crate) answer: usize,
    pub(crate) salt: u64,
    pub(crate) seed: u64,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) slots: Vec<usize>,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) samples: usize,
    /// How many of the tokens, the last ones, are drafts.
    pub(crate) drafts: usize,
    /// The slot with the states before the rows, and the slots of those after so many tokens.
    pub(crate) state: Option<usize>,
    pub(crate) leaves: Vec<(usize, usize)>,
}

impl FingerprintCache {
    pub(crate) fn new(num_blocks: usize, block_size: usize) -> FingerprintCache {
        FingerprintCache {
            slots: vec![UNWRITTEN; num_blocks * block_size],
            block_size,
            states: Vec::new(),
            tiers: BTreeMap::new(),
            accepts_unseen: false,
        }
    }

    /// The model has states.
    pub(crate) fn set_state_slots(&mut self, slots: usize) {
        self.states = vec![0; slots];
    }

    pub(crate) fn copy_block(&mut self, src: usize, dst: usize) {
        let (src, dst) = (src * self.block_size, dst * self.block_size);
        self.slots.copy_within(src..src + self.block_size, dst);
    }

    pub(crate) fn save(&mut self, save: BlockSave) {
        let block = &self.slots[save.block.index() * self.block_size..][..self.block_size];
        self.tiers.insert(save.slot, block.to_vec());
    }

    /// A write to disk that ended well, or left anything there.
    pub(crate) fn spill(&mut self, spill: SlotSpill, good: bool, garbage: u64) {
        let bytes = if good { self.tiers[&spill.host].clone() } else { vec![[garbage; LAYERS]; self.block_size] };
        self.tiers.insert(spill.disk, bytes);
    }

    /// What another worker sent, or anything.
    pub(crate) fn land(&mut self, slot: TierSlot, bytes: Option<&[Slot]>, garbage: u64) {
        let bytes = bytes.map_or(vec![[garbage; LAYERS]; self.block_size], <[Slot]>::to_vec);
        self.tiers.insert(slot, bytes);
    }

    /// A read that succeeded, or returned other bytes, which the checksum detected.
    pub(crate) fn load(&mut self, load: BlockLoad, good: bool, garbage: u64) {
        self.spoil_block(load.block.index(), garbage);
        if good {
            let start = load.block.index() * self.block_size;
            self.slots[start..start + self.block_size].copy_from_slice(&self.tiers[&load.slot]);
        }
    }

    /// What a block holds, as another worker reads it.
    pub(crate) fn read_block(&self, block: usize) -> &[Slot] {
        &self.slots[block * self.block_size..][..self.block_size]
    }

    /// What a step that failed may leave behind: anything.
    pub(crate) fn spoil_block(&mut self, block: usize, with: u64) {
        self.slots[block * self.block_size..][..self.block_size].fill([with; LAYERS]);
    }

    /// The same for everything that these rows were to write.
    pub(crate) fn spoil_rows(&mut self, rows: &LoweredRows, with: u64) {
        rows.slots[rows.start..].iter().for_each(|&slot| self.slots[slot] = [with; LAYERS]);
        rows.leaves.iter().for_each(|&(_, slot)| self.states[slot] = with);
    }

    /// One forward pass: every row writes its slot, then every row reads what the sequence's table names. What was
    /// sampled, by sequence.
    pub(crate) fn forward(&mut self, rows: &[LoweredRows]) -> Vec<Vec<RowOutput>> {
        self.advance_states(rows);
        let mut written = BTreeSet::new();
        for row in rows {
            let end = row.start + row.len;
            // Nothing beyond what is computed may be read.
            row.slots[row.start..].iter().for_each(|&slot| self.slots[slot] = UNWRITTEN);
            let mut prefix = root(row.salt);
            for (position, &token) in row.tokens[..end].iter().enumerate() {
                prefix = extend_prefix(prefix, token);
                if position >= row.start {
                    assert!(written.insert(row.slots[position]), "I4: two rows write one slot");
                    self.slots[row.slots[position]] = fingerprint(prefix);
                }
            }
        }
        rows.iter().filter(|row| row.samples > 0).map(|row| self.attend(row)).collect()
    }

    /// Every sequence goes on from the state after its own tokens, and leaves those after later ones.
    fn advance_states(&mut self, rows: &[LoweredRows]) {
        if self.states.is_empty() {
            return;
        }
        let after = |row: &LoweredRows, tokens: usize| {
            mix(row.tokens[..tokens].iter().fold(root(row.salt), |prefix, &token| extend_prefix(prefix, token)), 7)
        };
        for row in rows {
            assert_eq!(row.state.is_some(), row.start > 0, "I40: {:?} goes on from nothing", row.seq);
            let read = row.state.map(|slot| self.states[slot]);
            assert!(read.is_none_or(|read| read == after(row, row.start)), "I40: {:?} has another's state", row.seq);
        }
        let mut used: BTreeSet<usize> = rows.iter().filter_map(|row| row.state).collect();
        for row in rows {
            assert_eq!(
                row.leaves.last().map(|&(after, _)| after),
                Some(row.start + row.len),
                "I40: nothing to go on from"
            );
            for &(tokens, slot) in &row.leaves {
                assert!(used.insert(slot), "I40: slot {slot} is read or written twice");
                self.states[slot] = after(row, tokens);
            }
        }
    }

    /// Samples the rows: a token for each answer, or with drafts one from each row, until one differs from the draft.
    fn attend(&self, row: &LoweredRows) -> Vec<RowOutput> {
        let (mut prefix, mut readout) = (root(row.salt), 0);
        let end = row.start + row.len;
        let mut run = Vec::new();
        for (position, &token) in row.tokens[..end].iter().enumerate() {
            prefix = extend_prefix(prefix, token);
            let slot = self.slots[row.slots[position]];
            assert!(slot == fingerprint(prefix), "I8, I27: {:?} reads a foreign or unwritten slot", row.seq);
            readout = read(readout, slot);
            if row.drafts > 0 && position >= row.start {
                let token = sample(readout, row.seed, row.answer, position + 1);
                run.push(RowOutput { seq: row.seq, token });
                if row.tokens.get(position + 1) != Some(&token) || self.accepts_unseen {
                    if !self.accepts_unseen {
                        return run;
                    }
                    // The planted bug: drafts are taken as the answer.
                    run.extend(row.tokens[position + 1..end].iter().map(|&token| RowOutput { seq: row.seq, token }));
                    return run;
                }
            }
        }
        if row.drafts > 0 {
            return run;
        }
        let answers = row.answer..row.answer + row.samples;
        answers.map(|answer| RowOutput { seq: row.seq, token: sample(readout, row.seed, answer, end) }).collect()
    }
}

/// What one answer is when it runs alone: its tokens, and why it ends.
pub(crate) fn solo(request: &Request, seed: u64, answer: usize, max_model_len: usize) -> (Vec<TokenId>, FinishReason) {
    let (mut prefix, mut readout) = (root(request.salt), 0);
    let mut tokens = request.prompt.to_vec();
    let mut answer_tokens = Vec::new();
    let mut num_read = 0;
    loop {
        for &token in &tokens[num_read..] {
            prefix = extend_prefix(prefix, token);
            readout = read(readout, fingerprint(prefix));
        }
        num_read = tokens.len();
        if answer_tokens.len() >= request.stop.max_tokens || tokens.len() >= max_model_len {
            return (answer_tokens, FinishReason::Length);
        }
        let token = sample(readout, seed, answer, tokens.len());
        let heeded = answer_tokens.len() >= request.stop.min_tokens;
        tokens.push(token);
        answer_tokens.push(token);
        if heeded && request.stop.stop_token_ids.contains(&token) {
            return (answer_tokens, FinishReason::Stop(Some(token)));
        }
    }
}
