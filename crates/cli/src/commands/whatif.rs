//! `twostroke whatif`: a recorded run with other settings, in the simulator, beside what was.

use protocol::Nanos;
use replay::{Changes, Recording, past, what_if};

use crate::console::put_line;
use crate::failure::Failure;
use crate::flags::{Target, WhatifFlags};

pub(crate) fn ask(flags: &WhatifFlags) -> Result<(), Failure> {
    let past = past(Recording::open(&flags.log).map_err(Failure::usage)?).map_err(Failure::usage)?;
    let answer = what_if(&past, &changes(flags), &mut |_, _| true).map_err(Failure::usage)?;
    put_line(&if flags.json { answer.json().to_string() } else { answer.to_string().trim_end().to_owned() })
}

fn changes(flags: &WhatifFlags) -> Changes {
    let nanos = |target: Target| target.map(|time| Nanos(time.as_nanos() as u64));
    Changes {
        ttft: flags.ttft_slo.map(nanos),
        tpot: flags.tpot_slo.map(nanos),
        kv_blocks: flags.kv_blocks,
        max_num_batched_tokens: flags.max_num_batched_tokens,
        max_prefill_chunk: flags.max_prefill_chunk,
        max_prefill_seqs: flags.max_num_partial_prefills,
        max_num_seqs: flags.max_num_seqs,
        enable_prefix_caching: flags.no_enable_prefix_caching.then_some(false),
        without_drafts: flags.speculate.is_some(),
        without: Vec::new(),
    }
}
