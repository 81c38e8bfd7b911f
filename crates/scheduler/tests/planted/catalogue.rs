//! Bugs that real engines had, as mutations of this scheduler's source.
//!
//! ```text
//! file  "find"  ->  "replace"      find: an expression, or whole statements, that occur exactly once in the file,
//!                                  however they are wrapped; replace: the bug
//! ```
//!
//! The source does not know of them. Each bug names its origin: an incident of another engine, or the rule it breaks.

/// One bug.
pub(crate) struct Mutation {
    /// What it is called in tables, and on the command line.
    pub(crate) name: &'static str,
    /// What it does, and where it happened.
    pub(crate) origin: &'static str,
    /// Nearly always one.
    pub(crate) edits: &'static [Edit],
    /// It affects remote-only prefill: `tests/remote_only_prefill.rs` looks for it.
    pub(crate) is_of_pair: bool,
}

/// A change in one place.
pub(crate) struct Edit {
    /// Below `crates/scheduler/src`.
    pub(crate) file: &'static str,
    /// Expression or statements.
    pub(crate) find: &'static str,
    /// The same with the bug. Empty: left out.
    pub(crate) replace: &'static str,
}

const fn bug(name: &'static str, origin: &'static str, edits: &'static [Edit]) -> Mutation {
    Mutation { name, origin, edits, is_of_pair: false }
}

const fn bug_of_pair(name: &'static str, origin: &'static str, edits: &'static [Edit]) -> Mutation {
    Mutation { name, origin, edits, is_of_pair: true }
}

const fn edit(file: &'static str, find: &'static str, replace: &'static str) -> Edit {
    Edit { file, find, replace }
}

pub(crate) const MUTATIONS: &[Mutation] = &[
    bug(
        "FreeBeforeFence",
        "Blocks of a cancelled request are free while the step in flight still writes them (vLLM #52360, \
         pegaflow 0.24.2).",
        &[edit(
            "scheduler.rs",
            "self.state.remove_from_running(rank);",
            "self.state.remove_from_running(rank); self.release_blocks(id);",
        )],
    ),
    bug(
        "BlocksLeakedOnCancel",
        "Blocks of a request that is cancelled in flight are never freed (vLLM #9428, #24584).",
        &[edit("scheduler.rs", "self.release_blocks(planned.seq);", "")],
    ),
    bug(
        "CancelForgottenInQueue",
        "A request that is cancelled in the queue stays there and runs without a client (vLLM #54947).",
        &[edit("scheduler.rs", "self.state.queue.remove(seq)", "return")],
    ),
    bug(
        "QueuePlaceKept",
        "A queue slot is not freed, until every request is rejected (vLLM #53130).",
        &[edit("state.rs", "self.num_new -= 1; self.num_new_tokens -= prompt_tokens;", "")],
    ),
    bug(
        "HoldAndWait",
        "Waiting sequences hold a block each, and deadlock (Dynamo #11016).",
        &[edit(
            "prefill.rs",
            "return Err(Blocked::Kv);",
            "if let Some(block) = self.state.pool.take(None) {
                self.state.seqs[id].table.push(block);
            }
            return Err(Blocked::Kv);",
        )],
    ),
    bug(
        "NeverFitsUnchecked",
        "A request that can never fit is admitted and waits forever (Dynamo #11016).",
        &[edit("scheduler.rs", "needed_blocks > limits.num_blocks", "false")],
    ),
    bug(
        "AnswersUnbounded",
        "Any number of answers is admitted (CVE-2026-34756).",
        &[edit("scheduler.rs", "num_answers > limits.max_num_seqs", "false")],
    ),
    bug(
        "QueueUnbounded",
        "The queue takes any number of tokens (vLLM before #49445).",
        &[edit("scheduler.rs", "waiting_requests >= limits.max_queued_requests || too_many_tokens", "false")],
    ),
    bug(
        "MinTokensIgnored",
        "`min_tokens` is not heeded (kin of CVE-2026-114051: limits checked on other values than those used).",
        &[edit("request.rs", "before >= rules.min_tokens", "true")],
    ),
    bug(
        "OneTokenTooMany",
        "One token more than asked for: usage and text disagree.",
        &[edit("request.rs", "num_generated >= rules.max_tokens", "num_generated > rules.max_tokens")],
    ),
    bug(
        "HashBelieved",
        "A prefix hit is believed by its hash alone (CVE-2025-25183).",
        &[edit("kv/pool.rs", "equal.then_some(Hit { place, name })", "Some(Hit { place, name })")],
    ),
    bug(
        "SaltIgnored",
        "Blocks are shared between tenants (CVE-2025-46570).",
        &[
            edit("kv/prefix.rs", "salt.to_le_bytes()", "0u64.to_le_bytes()"),
            edit(
                "kv/pool.rs",
                "content.salt == salt && self.tokens_at(place) == tokens",
                "self.tokens_at(place) == tokens",
            ),
        ],
    ),
    bug(
        "NameUsedTwice",
        "Two contents have one name, so the children of one are believed to follow the other (PYSEC-2025-43).",
        &[edit("kv/pool.rs", "self.next_id += 1;", "")],
    ),
    bug(
        "EvictedStillFound",
        "An evicted block is still found under its old prefix (vLLM #37076).",
        &[edit("kv/pool.rs", "self.demote(block, by);", "")],
    ),
    bug(
        "RegisteredBeforeComplete",
        "A block is offered to others before it is computed (vLLM #52470).",
        &[
            edit(
                "prefill.rs",
                "self.plan.record.prefill.push(row);",
                "self.plan.record.prefill.push(row);
                self.state.seqs[id].num_computed += len;
                self.state.feed_prefix_cache(id, &[]);
                self.state.seqs[id].num_computed -= len;",
            ),
            edit(
                "decode.rs",
                "self.plan.record.decode.push(row);",
                "self.plan.record.decode.push(row);
                self.state.seqs[id].num_computed += 1;
                self.state.feed_prefix_cache(id, &[]);
                self.state.seqs[id].num_computed -= 1;",
            ),
        ],
    ),
    bug(
        "PartialBlockRegistered",
        "A block is offered to others when all but its last token is computed.",
        &[edit(
            "sequence.rs",
            "self.num_computed / self.table.block_size()",
            "(self.num_computed + 1) / self.table.block_size()",
        )],
    ),
    bug(
        "FailedStepCached",
        "After a failed step its blocks are offered to others as if it had happened (LMCache #1981).",
        &[edit(
            "scheduler.rs",
            "self.leave_running(id); self.state.return_to_queue(id);",
            "self.state.seqs[id].num_computed += planned.len;
            self.state.feed_prefix_cache(id, &[]);
            self.leave_running(id);
            self.state.return_to_queue(id);",
        )],
    ),
    bug(
        "ComputedWhileLoading",
        "A sequence computes on blocks that are still being loaded (vLLM #52360 read the other way).",
        &[edit("sequence.rs", "self.loads_in_flight > 0", "false")],
    ),
    bug(
        "SlotNotPinned",
        "A slot is handed out while it is being read (vLLM #52470).",
        &[edit("kv/pool.rs", "self.tiers.pin(slot);", "")],
    ),
    bug(
        "SaveForgotten",
        "The bytes of an evicted block are not copied to the slot that they are said to be in (a lost write).",
        &[edit("kv/pool.rs", "saves.append(&mut self.saves);", "self.saves.pop(); saves.append(&mut self.saves);")],
    ),
    bug(
        "BadLoadBelieved",
        "A load that failed, or whose checksum is wrong, is believed (LMCache #2420, #3207).",
        &[
            edit(
                "scheduler.rs",
                "self.state.pool.end_load(load.slot, good);",
                "self.state.pool.end_load(load.slot, true);",
            ),
            edit("scheduler.rs", "!good", "false"),
        ],
    ),
    bug(
        "BlocksLeakedOnLoad",
        "Blocks of a request that is cancelled while it loads are never freed (vLLM #46283).",
        &[edit("scheduler.rs", "self.release_blocks(load.seq);", "")],
    ),
    bug(
        "SharedBlockWritten",
        "An answer writes into a block that its siblings still read.",
        &[edit("decode.rs", "self.state.pool.refs(src) > 1", "false")],
    ),
    bug(
        "ForkUncounted",
        "Forked answers share blocks without counting.",
        &[edit("state.rs", "fork.table.iter().for_each(|&block| self.pool.share(block));", "")],
    ),
    bug(
        "HitsCountedFree",
        "Blocks of a prefix hit are counted as free as well (vLLM #32255: one block, two owners).",
        &[edit("prefill.rs", "self.pool.is_free(*block)", "false")],
    ),
    bug(
        "TokensLostWhenPreempted",
        "What was generated before a preemption is forgotten and generated again (Dynamo: replay without the \
         emitted tokens).",
        &[edit(
            "sequence.rs",
            "self.status = Status::Waiting;",
            "self.tokens.truncate(self.request.prompt.len()); self.status = Status::Waiting;",
        )],
    ),
    bug(
        "OldestPreempted",
        "The first in line loses its blocks to those behind it.",
        &[edit("decode.rs", "self.cheapest_victim(behind, swap_weight)", "Some(self.running[0].1)")],
    ),
    bug(
        "HigherClassPreempted",
        "A request of a higher class loses its blocks while a lower one of its tenant keeps them.",
        &[edit("decode.rs", "rank.priority", "Priority(0)")],
    ),
    bug(
        "PreemptedWithoutEnd",
        "Nothing bounds how often one request loses its blocks (vLLM #546).",
        &[edit("decode.rs", "seq.num_preemptions >= MAX_PREEMPTIONS", "false")],
    ),
    bug(
        "ReserveGivenAway",
        "Reserved blocks of protected sequences are allocated: in the end none can finish (Dynamo #11016).",
        &[edit(
            "decode.rs",
            "protected
                .map(|seq| self.blocks_to_end(seq) - seq.table.len() + sharers.copies_to_write(seq, &self.pool))
                .sum()",
            "0",
        )],
    ),
    bug(
        "PromptStarved",
        "The oldest prompt starves behind other tenants'.",
        &[edit("policy.rs", "self.passed_over >= MAX_PASSED_OVER", "false")],
    ),
    bug(
        "RightsSavedUp",
        "A tenant that returns from idle has accumulated credit and is served alone until it is used up (the lift of \
         Sheng et al., OSDI 2024, left out).",
        &[edit("fairness.rs", "counter.served = counter.served.max(level);", "")],
    ),
    bug(
        "AnswersNotCharged",
        "A tenant pays for prompts and not for answers, so long answers are free.",
        &[edit("fairness.rs", "SAMPLED * samples as u64", "0")],
    ),
    bug(
        "ClassNotWeighed",
        "All classes are charged alike, so batch work costs others as much as interactive work.",
        &[edit("fairness.rs", "charge_per_token(seq.rank.priority)", "charge_per_token(protocol::Priority(0))")],
    ),
    bug(
        "OutOfOrder",
        "Neighbours in the queue change places.",
        &[edit(
            "state.rs",
            "Rank { priority: request.priority, arrival: self.next_arrival, answer: 0 }",
            "Rank { priority: request.priority, arrival: self.next_arrival ^ 1, answer: 0 }",
        )],
    ),
    bug(
        "ChunkExceedsStep",
        "A chunk takes more rows than the step has left.",
        &[edit(
            "prefill.rs",
            "num_uncomputed.min(rows_left).min(limits.max_prefill_chunk)",
            "num_uncomputed.min(limits.max_prefill_chunk)",
        )],
    ),
    bug(
        "PromptsUnbounded",
        "Any number of prompts advances in a step.",
        &[edit("prefill.rs", "budget.prompts -= 1;", "")],
    ),
    bug(
        "DecodeRowForgotten",
        "In a large step the last decode rows are left out.",
        &[edit("decode.rs", "stalled == Some(id)", "stalled == Some(id) || step.decode.len() >= 3")],
    ),
    bug(
        "LeftOutForEver",
        "Streams without a target are left out forever while others have one.",
        &[edit("decode.rs", "seq.steps_left_out < MOST_LEFT_OUT", "true")],
    ),
    bug(
        "TargetIgnored",
        "Prompt chunks ignore the streams' target (a long prompt freezes another client's stream).",
        &[edit("prefill.rs", "bound.map(|bound| self.at_least_some_growth(bound))", "None")],
    ),
    bug(
        "EndReportedTwice",
        "The end of an answer is reported twice.",
        &[edit(
            "scheduler.rs",
            "events.push(TokenEvent::Finished { request, answer, reason });",
            "events.push(TokenEvent::Finished { request, answer, reason });
            events.push(TokenEvent::Finished { request, answer, reason });",
        )],
    ),
    bug(
        "TokenToWrongAnswer",
        "A token goes to the request's first answer whichever it belongs to (kin of CVE-2026-105755).",
        &[edit(
            "scheduler.rs",
            "events.push(TokenEvent::Token { request, answer, token });",
            "events.push(TokenEvent::Token { request, answer: 0, token });",
        )],
    ),
    bug(
        "GaugeDrifts",
        "The tokens that wait are miscounted after a preemption.",
        &[edit(
            "queue.rs",
            "self.num_tokens -= seq.num_tokens();",
            "if seq.num_preemptions() == 0 { self.num_tokens -= seq.num_tokens(); }",
        )],
    ),
    bug(
        "RejectedDraftRegistered",
        "Rows of drafts that were wrong count as computed, and their blocks get names in the prefix cache.",
        &[edit(
            "scheduler.rs",
            "self.state.note_computed(id, 1, left);",
            "self.state.note_computed(id, if index == 0 { planned.len } else { 0 }, left);",
        )],
    ),
    bug(
        "TableNotCut",
        "Blocks that were taken for drafts stay when the drafts were wrong.",
        &[edit("scheduler.rs", "self.state.cut_table(id, planned.start + 1 + tokens.len());", "")],
    ),
    bug(
        "DraftTakesWhatIsSetAside",
        "A draft takes a block that is reserved for another sequence, or that it needs for its next token.",
        &[edit("speculate.rs", "*spare + own > 0", "self.state.pool.num_free() > 0")],
    ),
    bug(
        "ProposalToAnother",
        "The drafts of one sequence are planned for another.",
        &[edit(
            "speculate.rs",
            "candidates.push(DraftCandidate { proposal, own: seq.acceptance, decode, row, most, taken: 0 });",
            "let of = |id: &SeqId| self.state.seqs.get(*id).and_then(|seq| seq.proposal);
             let proposal = proposed.first().and_then(of).unwrap_or(proposal);
             let most = usize::from(proposal.len).min(seq.tokens_to_go(&self.state.limits) - 1).min(room);
             candidates.push(DraftCandidate { proposal, own: seq.acceptance, decode, row, most, taken: 0 });",
        )],
    ),
    bug(
        "DraftBeyondTheEnd",
        "Drafts are computed behind the last token that an answer may have.",
        &[edit("speculate.rs", "seq.tokens_to_go(&self.state.limits) - 1", "seq.tokens_to_go(&self.state.limits)")],
    ),
    bug(
        "RunBehindTheEnd",
        "A run of tokens goes on behind the stop token.",
        &[edit("scheduler.rs", "return index + 1;", "continue;")],
    ),
    bug(
        "DraftsForNothing",
        "A tenant is not charged for accepted drafts.",
        &[edit("fairness.rs", "self.charge(seq, SAMPLED);", "")],
    ),
    bug(
        "LastTokenDrawnTwice",
        "An answer that began elsewhere draws its last known token again (Dynamo: replay without the emitted tokens).",
        &[edit(
            "sequence.rs",
            "self.tokens.extend_from_slice(generated);",
            "self.tokens.extend_from_slice(&generated[..generated.len() - 1]);",
        )],
    ),
    bug(
        "GeneratedMixedUp",
        "Every answer of a resumed request goes on with the tokens of the first.",
        &[edit(
            "state.rs",
            "Sequence::new(id, request.clone(), rank, self.limits.block_size).with_generated(tokens, now)",
            "{
                let first = generated.iter().flatten().next().copied().unwrap_or(tokens);
                Sequence::new(id, request.clone(), rank, self.limits.block_size).with_generated(first, now)
            }",
        )],
    ),
    bug(
        "EndedAnswerResumed",
        "An answer that had ended before goes on, behind its end.",
        &[edit("resume.rs", "has_ended(&request.stop, tokens.unwrap_or_default(), room)", "false")],
    ),
    bug(
        "ExpectedForgotten",
        "A request that is cancelled during remote prefill stays forever (SGLang #31800).",
        &[edit(
            "scheduler.rs",
            "active.answers.into_iter().flatten().for_each(|seq| self.retire(seq));",
            "for seq in active.answers.into_iter().flatten() {
                if !self.state.seqs[seq].is_in_remote_prefill() { self.retire(seq); }
            }",
        )],
    ),
    bug(
        "ExpectedUncounted",
        "Requests in remote prefill do not count in the queue limits, and nothing bounds them.",
        &[edit(
            "scheduler.rs",
            "(self.state.num_new, self.state.num_new_tokens)",
            "{
                let seqs = self.state.seqs.iter().filter(|seq| seq.is_in_remote_prefill());
                let (num, tokens) = seqs.fold((0, 0), |(num, tokens), seq| (num + 1, tokens + seq.num_tokens()));
                (self.state.num_new - num, self.state.num_new_tokens - tokens)
            }",
        )],
    ),
    bug(
        "ResumedPaysAgain",
        "A tenant is charged again for a prompt that another worker has read.",
        &[edit("sequence.rs", "self.num_prompt_rows_served = self.num_prompt_tokens();", "")],
    ),
    bug(
        "KeptFreedWhileRead",
        "A pinned block is reallocated while another worker reads it (8 of 42 requests decoded such ones, with 200 OK: \
         aws-do-eks #84).",
        &[edit("kv/pool.rs", "self.pinned.iter().find(|&at| self.blocks[at].readers == 0)", "self.pinned.first()")],
    ),
    bug(
        "LeaseWithoutEnd",
        "Blocks stay pinned forever for a dead worker (vLLM #35764).",
        &[edit("pin.rs", "pinned.until > now", "true")],
    ),
    bug(
        "KeptHoldsOut",
        "Pinned blocks keep a new request out while they are pinned (vLLM #38027).",
        &[edit("kv/pool.rs", "self.free.len() + self.num_pinned()", "self.free.len()")],
    ),
    bug(
        "PinLossUnreported",
        "A pinned block is reallocated, and its peer is not informed.",
        &[edit("scheduler.rs", "self.state.pool.num_pinned_taken() > pinned_taken", "false")],
    ),
    bug(
        "KeptAfterCancel",
        "Blocks of a cancelled request stay pinned.",
        &[edit("scheduler.rs", "self.unpin(id);", "")],
    ),
    bug(
        "AdoptedWithoutParent",
        "A block from elsewhere is taken although what comes before it is not here.",
        &[edit("kv_receive.rs", "count < index", "false")],
    ),
    bug(
        "BadChecksumBelieved",
        "A block whose bytes are not what was sent is believed (8 of 42 requests with wrong answers: aws-do-eks #84).",
        &[edit("kv/pool.rs", "good && is_wanted", "is_wanted")],
    ),
    bug(
        "LandingNotPinned",
        "A slot whose bytes are on their way is reallocated (SGLang #24527, vLLM #46283).",
        &[edit("kv/tiers.rs", "self.pin(slot);", "self.tier_mut(slot.tier).empty.push(slot.index);")],
    ),
    bug(
        "LandingLeaked",
        "A slot whose bytes never came is not given back (vLLM #50754).",
        &[edit("kv/tiers.rs", "self.unpin(slot);", "if is_received { self.unpin(slot); }")],
    ),
    bug(
        "LoadingBlockRead",
        "Another worker reads a block that is still being loaded.",
        &[edit("pin.rs", "!seq.is_loading()", "true")],
    ),
    bug(
        "PrefixWithoutItsState",
        "A prefix of a model with states is taken beyond its last checkpoint (prefix hits of hybrids: omlx #825).",
        &[edit("checkpoints.rs", "usable < found", "false")],
    ),
    bug(
        "StateOfRejectedDraft",
        "An answer goes on from the state after drafts that were wrong.",
        &[edit(
            "checkpoints.rs",
            "left.iter().find(|save| Some(save.after) == computed)",
            "left.last().filter(|_| computed.is_some())",
        )],
    ),
    bug(
        "StateKeptPastItsContent",
        "The checkpoint of an evicted block is found under the next content.",
        &[edit("kv/pool.rs", "self.states.forget(state);", "")],
    ),
    bug(
        "StateReleasedTwice",
        "A failed step gives back what its sequences still go on from.",
        &[edit("checkpoints.rs", "self.pool.share_state(save.slot);", "")],
    ),
    bug_of_pair(
        "GivenNotAwaited",
        "A prompt enters although blocks of it are missing, and they are computed here.",
        &[edit("remote_only_prefill.rs", "self.plan.hits.len() >= remote", "true")],
    ),
    bug_of_pair(
        "LackingUnreported",
        "Missing blocks are not reported, so none are fetched.",
        &[edit("remote_only_prefill.rs", "step.needs_prefill.push(seq.request_id());", "")],
    ),
    bug_of_pair(
        "OwnTakenForGiven",
        "What was computed here behind a prompt is found, and taken for the prompt of the next turn.",
        &[edit("sequence.rs", "full.min(self.num_remote_blocks())", "full")],
    ),
    bug_of_pair(
        "GivenTakenForOwn",
        "A longer prompt's block is found where the shorter one's own end should be computed.",
        &[edit(
            "sequence.rs",
            "if self.prompt_is_remote { self.num_remote_blocks() } else { (self.num_tokens() - 1) / self.table.block_size() }",
            "(self.num_tokens() - 1) / self.table.block_size()",
        )],
    ),
    bug_of_pair(
        "AnswerGivenToo",
        "What was answered before a preemption is awaited from elsewhere, like a prompt.",
        &[edit("sequence.rs", "(self.num_prompt_tokens() - 1)", "(self.num_tokens() - 1)")],
    ),
];
