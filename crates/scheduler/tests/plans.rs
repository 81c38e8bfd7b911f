//! The scheduler as a specification: tables of what arrives and what is planned.
//!
//! ```text
//! step | arrives              | plan                         | ends      | used
//! 1    | A prompt=3 output=2  | prefill A[0..3]              |           | 1
//! 2    | B prompt=12 output=1 | decode A, prefill B[0..7]    | A length  | 4
//! ```
//!
//! Each row admits what arrives, plans one step and completes it; `A[0..3]` are positions. Other words of a row:
//! `n=` answers (named `A.0`, `A.1`; `A` while they are one prompt), `priority=`, `like=A:8` (its first 8 prompt tokens
//! are A's), `salt=`, `cache=off`, `min=` tokens, `eos=3` (the model says the stop token as its third token and ever
//! after), `cancel A`, `stop A.1`, both also `in flight`: between plan and completion. `C prompt=99: NeverFits` is
//! refused so. `offer A=4` has four drafts for A's next tokens, of which none hold unless `right=` says how many
//! would; in a plan, `A+4` are these drafts. `fail in flight` abandons the step. In a plan, `x3` is a chunk from which
//! three tokens are sampled when not one, `copy 4>7` copies a block. Where there are tiers (`host=` and `disk=`
//! slots), `save 4>h0`, `load h0>A` and `spill h0>d1` move contents. Host memory answers at once; what the disk was
//! asked for in one row ends with the next, well, or not where the row says `disk fails`, or later where it says `disk
//! waits`. `resume A prompt=6 output=9 knows=3` comes with three tokens of its answer, with several answers as many of
//! each (`knows=3/0/-`: the third has ended); `expect A prompt=6 output=9` is read elsewhere, until `come A knows=1`.
//! `keep=7` keeps the blocks of an answer for 7 ns from its end, and it is 0 until `at 9`; `release A` lets go of them,
//! and in the column `lost` `A:1 blocks` has one left. `read A:1` begins to read the second block, or `cannot read
//! A:1`; `reads end`. `land A:1 good` brings it from elsewhere, or `spoiled`, or it has no slot: `NoParent`. A table
//! may leave out the columns after `plan`. `check_invariants` runs after every call.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scheduler::{
    BlockLoad, BlockRead, Event, FinishReason, KeptEnd, Limits, LimitsError, Nanos, Offer, Priority, Request,
    RequestId, RowOutput, Rows, Scheduler, SeqId, Sequence, SlotSpill, SourceId, Step, StepOutput, StopRules, Tier,
    TierSizes, TierSlot, TokenId,
};
use testing::plans;

const EOS: TokenId = 1;

#[test]
fn drafts_are_rows_behind_the_last_token_and_count_as_far_as_they_hold() {
    check(
        "block_size=4 blocks=16",
        "
        step | arrives              | plan           | ends     | used
        1    | A prompt=3 output=9  | prefill A[0..3] |         | 1
        2    | offer A=4 right=2    | decode A+4     |          | 2
        3    | offer A=3 right=3    | decode A+3     |          | 3
        4    |                      | decode A       | A length | 0
        ",
    );
}

#[test]
fn blocks_of_drafts_that_were_wrong_go_back() {
    check(
        "block_size=2 blocks=16",
        "
        step | arrives              | plan           | ends     | used
        1    | A prompt=2 output=9  | prefill A[0..2] |         | 1
        2    | offer A=3            | decode A+3     |          | 2
        3    | offer A=9 right=9    | decode A+2     |          | 3
        ",
    );
}

#[test]
fn drafts_end_before_the_answer_does_and_nothing_follows_a_stop_token() {
    check(
        "block_size=16 blocks=16",
        "
        step | arrives                            | plan                    | ends             | used
        1    | A prompt=3 output=4                | prefill A[0..3]         |                  | 1
        2    | offer A=9 right=9, B prompt=3 output=9 eos=3 | decode A+2, prefill B[0..3] | A length | 1
        3    | offer B=5 right=5                  | decode B+5              | B stop           | 0
        ",
    );
}

#[test]
fn drafts_take_no_block_that_others_need_and_no_row_of_a_prompt() {
    check(
        "block_size=2 blocks=6 tokens_per_step=6",
        "
        step | arrives                                   | plan                             | ends | used
        1    | A prompt=3 output=5, B prompt=3 output=5  | prefill A[0..3] B[0..3]          |      | 4
        2    | offer A=4, offer B=4                      | decode A+2 B                     |      | 5
        3    | offer A=4, offer B=4                      | decode A+1 B+1                   |      | 6
        ",
    );
    check(
        "block_size=16 blocks=16 tokens_per_step=4",
        "
        step | arrives                                   | plan                             | ends
        1    | A prompt=3 output=9                       | prefill A[0..3]                  |
        2    | B prompt=5 output=9, offer A=4            | decode A, prefill B[0..3]        |
        3    | offer A=4                                 | decode A+1, prefill B[3..5]      |
        ",
    );
}

#[test]
fn an_offer_is_forgotten_by_the_next_plan_and_a_failed_step_loses_its_drafts() {
    check(
        "block_size=16 blocks=16",
        "
        step | arrives                            | plan             | ends | used
        1    | A prompt=3 output=9                | prefill A[0..3]  |      | 1
        2    | offer A=4 right=4, fail in flight  | decode A+4       |      | 0
        3    |                                    | prefill A[0..4]  |      | 1
        4    |                                    | decode A         |      | 1
        ",
    );
}

#[test]
fn a_long_prompt_shares_the_step_with_decode() {
    check(
        "block_size=4 blocks=16 tokens_per_step=8",
        "
        step | arrives              | plan                      | ends     | used
        1    | A prompt=3 output=2  | prefill A[0..3]           |          | 1
        2    | B prompt=12 output=1 | decode A, prefill B[0..7] | A length | 3
        3    |                      | prefill B[7..12]          | B length | 0
        4    |                      | nothing                   |          | 0
        ",
    );
}

#[test]
fn decode_goes_first_and_prompts_take_what_is_left() {
    check(
        "tokens_per_step=6 blocks=32",
        "
        step | arrives                                    | plan                         | ends
        1    | A prompt=2 output=9, B prompt=2 output=9   | prefill A[0..2] B[0..2]      |
        2    | C prompt=20 output=1                       | decode A B, prefill C[0..4]  |
        3    |                                            | decode A B, prefill C[4..8]  |
        ",
    );
}

#[test]
fn a_chunk_is_bounded_even_in_an_empty_step() {
    check(
        "tokens_per_step=64 chunk=5",
        "
        step | arrives               | plan              | ends
        1    | A prompt=12 output=1  | prefill A[0..5]   |
        2    |                       | prefill A[5..10]  |
        3    |                       | prefill A[10..12] | A length
        ",
    );
}

#[test]
fn the_number_of_prompts_in_a_step_is_bounded() {
    check(
        "tokens_per_step=64 prompts_per_step=2 seqs=8",
        "
        step | arrives                                                      | plan                         | waiting
        1    | A prompt=3 output=3, B prompt=3 output=3, C prompt=3 output=3 | prefill A[0..3] B[0..3]      | 1
        2    |                                                              | decode A B, prefill C[0..3]  | 0
        ",
    );
}

#[test]
fn prompts_are_served_first_come_first_served() {
    check(
        "tokens_per_step=8 chunk=6",
        "
        step | arrives                                      | plan                           | ends
        1    | A prompt=10 output=1, B prompt=10 output=1   | prefill A[0..6] B[0..2]        |
        2    |                                              | prefill A[6..10] B[2..6]       | A length
        3    | C prompt=4 output=1                          | prefill B[6..10] C[0..4]       | B length, C length
        ",
    );
}

#[test]
fn lower_priority_numbers_go_first_and_keep_arrival_order_within_a_class() {
    check(
        "tokens_per_step=4 seqs=4",
        "
        step | arrives                                                                                      | plan             | ends
        1    | A prompt=8 output=1 priority=5, B prompt=4 output=1 priority=1, C prompt=4 output=1 priority=1 | prefill B[0..4]  | B length
        2    |                                                                                              | prefill C[0..4]  | C length
        3    |                                                                                              | prefill A[0..4]  |
        4    | D prompt=4 output=1 priority=0                                                               | prefill D[0..4]  | D length
        5    |                                                                                              | prefill A[4..8]  | A length
        ",
    );
}

#[test]
fn a_low_class_is_passed_over_sixteen_times_at_most() {
    let mut table = String::from("step | arrives | plan\n");
    table += "1 | Z prompt=4 output=1 priority=9, A0 prompt=4 output=1 | prefill A0[0..4]\n";
    for step in 1..16 {
        table += &format!("{} | A{step} prompt=4 output=1 | prefill A{step}[0..4]\n", step + 1);
    }
    table += "17 | A16 prompt=4 output=1 | prefill Z[0..4]\n";
    table += "18 | | prefill A16[0..4]\n";
    check("tokens_per_step=4 seqs=4", &table);
}

#[test]
fn an_equal_prefix_is_computed_once() {
    check(
        "block_size=4",
        "
        step | arrives                                 | plan                         | ends     | used
        1    | A prompt=11 output=3                    | prefill A[0..11]             |          | 3
        2    | B prompt=13 output=1 like=A:11          | decode A, prefill B[8..13]   | B length | 3
        3    |                                         | decode A                     | A length | 0
        4    | C prompt=12 output=1 like=A:6           | prefill C[4..12]             | C length | 0
        ",
    );
}

#[test]
fn a_block_is_shared_only_once_it_is_computed() {
    // B arrives with A: nothing of A is computed, so B computes its own copy.
    check(
        "block_size=4",
        "
        step | arrives                                              | plan                      | used
        1    | A prompt=9 output=3, B prompt=9 output=3 like=A:9    | prefill A[0..9] B[0..9]   | 6
        2    | C prompt=9 output=3 like=A:9                         | decode A B, prefill C[8..9] | 7
        ",
    );
}

#[test]
fn a_prompt_known_in_full_still_computes_its_last_token() {
    check(
        "block_size=4",
        "
        step | arrives                          | plan              | ends
        1    | A prompt=8 output=1              | prefill A[0..8]   | A length
        2    | B prompt=8 output=1 like=A:8     | prefill B[4..8]   | B length
        3    | C prompt=9 output=1 like=A:8     | prefill C[8..9]   | C length
        ",
    );
}

#[test]
fn generated_tokens_are_found_by_the_next_turn_only_as_a_prefix() {
    // A's answer starts at position 6; D repeats A's prompt but not its answer.
    check(
        "block_size=4",
        "
        step | arrives                            | plan              | ends
        1    | A prompt=6 output=3                | prefill A[0..6]   |
        2    |                                    | decode A          |
        3    |                                    | decode A          | A length
        4    | D prompt=12 output=1 like=A:6      | prefill D[4..12]  | D length
        ",
    );
}

#[test]
fn tenants_do_not_share_and_a_request_can_stay_out_of_the_cache() {
    check(
        "block_size=4",
        "
        step | arrives                                   | plan              | ends
        1    | A prompt=9 output=1                       | prefill A[0..9]   | A length
        2    | B prompt=9 output=1 like=A:9 salt=7       | prefill B[0..9]   | B length
        3    | C prompt=9 output=1 like=A:9 cache=off    | prefill C[0..9]   | C length
        4    | D prompt=9 output=1 like=A:9 salt=7       | prefill D[8..9]   | D length
        5    | E prompt=9 output=1 cache=off             | prefill E[0..9]   | E length
        6    | F prompt=9 output=1 like=E:9              | prefill F[0..9]   | F length
        ",
    );
}

#[test]
fn the_cache_can_be_off_for_all() {
    check(
        "block_size=4 cache=0",
        "
        step | arrives                        | plan              | ends
        1    | A prompt=9 output=1            | prefill A[0..9]   | A length
        2    | B prompt=9 output=1 like=A:9   | prefill B[0..9]   | B length
        ",
    );
}

#[test]
fn the_least_recently_used_prefix_is_evicted_first_and_its_end_before_its_start() {
    // Four blocks. A leaves two cached ones, B two; C's three take A's two and B's last.
    check(
        "block_size=4 blocks=4",
        "
        step | arrives                         | plan               | ends
        1    | A prompt=8 output=1             | prefill A[0..8]    | A length
        2    | B prompt=8 output=1             | prefill B[0..8]    | B length
        3    | C prompt=12 output=1            | prefill C[0..12]   | C length
        4    | D prompt=9 output=1 like=B:8    | prefill D[4..9]    | D length
        5    | E prompt=9 output=1 like=A:8    | prefill E[0..9]    | E length
        ",
    );
}

#[test]
fn several_answers_share_the_prompt_and_copy_its_partial_block() {
    // 6 tokens: block 0 is full and stays shared, block 1 is half full and copied for all but the last writer.
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                      | plan                                      | ends                         | used
        1    | A prompt=6 output=3 n=3      | prefill A[0..6]x3                         |                              | 2
        2    |                              | copy 1>2 1>3, decode A.0 A.1 A.2          |                              | 4
        3    |                              | decode A.0 A.1 A.2                        | A.0 length, A.1 length, A.2 length | 0
        ",
    );
}

#[test]
fn answers_of_a_prompt_that_ends_with_its_block_copy_nothing() {
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                      | plan                  | ends                   | used
        1    | A prompt=8 output=2 n=2      | prefill A[0..8]x2     |                        | 2
        2    |                              | decode A.0 A.1        | A.0 length, A.1 length | 0
        ",
    );
}

#[test]
fn every_answer_has_its_seat_before_the_prompt_starts() {
    check(
        "seqs=4",
        "
        step | arrives                                       | plan                               | ends     | waiting
        1    | A prompt=4 output=3, B prompt=4 output=2 n=4  | prefill A[0..4]                    |          | 1
        2    | C prompt=4 output=2                           | decode A                           |          | 2
        3    |                                               | decode A                           | A length | 2
        4    |                                               | prefill B[0..4]x4                  |          | 1
        5    |                                               | decode B.0 B.1 B.2 B.3             | B.0 length, B.1 length, B.2 length, B.3 length | 1
        6    |                                               | prefill C[0..4]                    |          | 0
        ",
    );
}

#[test]
fn each_answer_ends_on_its_own() {
    check(
        "seqs=4",
        "
        step | arrives                      | plan                                      | ends        | used
        1    | A prompt=6 output=4 n=3      | prefill A[0..6]x3                         |             | 2
        2    | stop A.1                     | copy 1>2, decode A.0 A.2                  |             | 3
        3    | stop A.0 in flight           | decode A.0 A.2                            |             | 2
        4    |                              | decode A.2                                | A.2 length  | 0
        ",
    );
}

#[test]
fn a_newcomer_leaves_a_block_for_each_that_grows() {
    // Both prompts fit, but A will ask for a third block: B would be thrown out for it.
    check(
        "block_size=4 blocks=4 seqs=2 tokens_per_step=16",
        "
        step | arrives                                       | plan                   | ends     | used | waiting
        1    | A prompt=7 output=4, B prompt=6 output=2      | prefill A[0..7]        |          | 2    | 1
        2    |                                               | decode A               |          | 2    | 1
        3    |                                               | decode A               |          | 3    | 1
        4    |                                               | decode A               | A length | 0    | 1
        5    |                                               | prefill B[0..6]        |          | 2    | 0
        ",
    );
}

#[test]
fn whoever_is_short_of_a_block_takes_those_of_the_youngest_which_resumes_with_its_own_prefix() {
    // Six blocks. In step 7 A needs a fourth and B, which is younger, gives up its three, two of them cached. A takes
    // the plain one, then in step 11 the later of the cached ones; B finds the earlier one and recomputes the rest.
    check(
        "block_size=4 blocks=6 seqs=3 tokens_per_step=32",
        "
        step | arrives                                     | plan                     | ends     | used | waiting
        1    | A prompt=7 output=14, B prompt=6 output=9   | prefill A[0..7] B[0..6]  |          | 4    | 0
        2    |                                             | decode A B               |          | 4    | 0
        3    |                                             | decode A B               |          | 5    | 0
        4    |                                             | decode A B               |          | 6    | 0
        5    |                                             | decode A B               |          | 6    | 0
        6    |                                             | decode A B               |          | 6    | 0
        7    |                                             | preempt B, decode A      |          | 4    | 1
        8    |                                             | decode A                 |          | 4    | 1
        9    |                                             | decode A                 |          | 4    | 1
        10   |                                             | decode A                 |          | 4    | 1
        11   | C prompt=2 output=1                         | decode A                 |          | 5    | 2
        12   |                                             | decode A                 |          | 5    | 2
        13   |                                             | decode A                 |          | 5    | 2
        14   |                                             | decode A                 | A length | 0    | 2
        15   |                                             | prefill B[4..12] C[0..2] | C length | 3    | 0
        16   |                                             | decode B                 |          | 4    | 0
        17   |                                             | decode B                 | B length | 0    | 0
        ",
    );
}

#[test]
fn the_victim_loses_the_least_per_block_in_its_class() {
    // In step 13 A is short. B, though older than C, has computed 11 tokens on 5 blocks, C 10 tokens on 3.
    check(
        "block_size=4 blocks=11 seqs=4 tokens_per_step=16 chunk=1",
        "
        step | arrives                                                           | plan                             | used | waiting
        1    | A prompt=1 output=40                                              | prefill A[0..1]                  | 1    | 0
        2    | B prompt=20 output=1 priority=1, C prompt=1 output=20 priority=1  | decode A, prefill B[0..1] C[0..1] | 7   | 0
        3    |                                                                   | decode A C, prefill B[1..2]      | 7    | 0
        4    |                                                                   | decode A C, prefill B[2..3]      | 7    | 0
        5    |                                                                   | decode A C, prefill B[3..4]      | 8    | 0
        6    |                                                                   | decode A C, prefill B[4..5]      | 9    | 0
        7    |                                                                   | decode A C, prefill B[5..6]      | 9    | 0
        8    |                                                                   | decode A C, prefill B[6..7]      | 9    | 0
        9    |                                                                   | decode A C, prefill B[7..8]      | 10   | 0
        10   |                                                                   | decode A C, prefill B[8..9]      | 11   | 0
        11   |                                                                   | decode A C, prefill B[9..10]     | 11   | 0
        12   |                                                                   | decode A C, prefill B[10..11]    | 11   | 0
        13   |                                                                   | preempt B, decode A C            | 7    | 1
        ",
    );
}

#[test]
fn the_victim_is_of_the_lowest_class_whatever_it_loses() {
    // The same, but C is of a lower class than B.
    check(
        "block_size=4 blocks=11 seqs=4 tokens_per_step=16 chunk=1",
        "
        step | arrives                                                           | plan                             | used | waiting
        1    | A prompt=1 output=40                                              | prefill A[0..1]                  | 1    | 0
        2    | B prompt=20 output=1 priority=1, C prompt=1 output=20 priority=2  | decode A, prefill B[0..1] C[0..1] | 7   | 0
        3    |                                                                   | decode A C, prefill B[1..2]      | 7    | 0
        4    |                                                                   | decode A C, prefill B[2..3]      | 7    | 0
        5    |                                                                   | decode A C, prefill B[3..4]      | 8    | 0
        6    |                                                                   | decode A C, prefill B[4..5]      | 9    | 0
        7    |                                                                   | decode A C, prefill B[5..6]      | 9    | 0
        8    |                                                                   | decode A C, prefill B[6..7]      | 9    | 0
        9    |                                                                   | decode A C, prefill B[7..8]      | 10   | 0
        10   |                                                                   | decode A C, prefill B[8..9]      | 11   | 0
        11   |                                                                   | decode A C, prefill B[9..10]     | 11   | 0
        12   |                                                                   | decode A C, prefill B[10..11]    | 11   | 0
        13   |                                                                   | preempt C, decode A, prefill B[11..12]            | 9    | 1
        ",
    );
}

#[test]
fn a_higher_class_in_need_takes_from_a_lower_one_however_young_it_is() {
    // B came first, but A is of the higher class: at position 8 A takes B's blocks.
    check(
        "block_size=4 blocks=4 seqs=2 tokens_per_step=16",
        "
        step | arrives                                    | plan                              | used | waiting
        1    | B prompt=3 output=13 priority=1            | prefill B[0..3]                   | 1    | 0
        2    | A prompt=3 output=13                       | decode B, prefill A[0..3]         | 2    | 0
        3    |                                            | decode A B                        | 3    | 0
        4    |                                            | decode A B                        | 4    | 0
        5    |                                            | decode A B                        | 4    | 0
        6    |                                            | decode A B                        | 4    | 0
        7    |                                            | preempt B, decode A               | 2    | 1
        ",
    );
}

#[test]
fn a_sequence_whose_whole_answer_is_still_cached_resumes_with_a_decode_row() {
    // B is short in step 8, with 8 tokens computed on two full blocks, which nobody takes: one token is left to do.
    check(
        "block_size=4 blocks=5 seqs=2 tokens_per_step=16",
        "
        step | arrives                                    | plan                      | ends     | used
        1    | A prompt=3 output=10, B prompt=2 output=8  | prefill A[0..3] B[0..2]   |          | 2
        2    |                                            | decode A B                |          | 2
        3    |                                            | decode A B                |          | 3
        4    |                                            | decode A B                |          | 4
        5    |                                            | decode A B                |          | 4
        6    |                                            | decode A B                |          | 4
        7    |                                            | decode A B                |          | 5
        8    |                                            | preempt B, decode A       |          | 3
        9    |                                            | decode A                  |          | 3
        10   |                                            | decode A                  | A length | 0
        11   |                                            | decode B                  | B length | 0
        ",
    );
}

#[test]
fn a_cancelled_request_is_gone_within_a_step() {
    check(
        "seqs=2",
        "
        step | arrives                                                             | plan                       | used | waiting
        1    | A prompt=6 output=9, B prompt=6 output=9, C prompt=6 output=9       | prefill A[0..6] B[0..6]    | 4    | 1
        2    | cancel C                                                            | decode A B                 | 4    | 0
        3    | cancel A                                                            | decode B                   | 2    | 0
        4    | cancel B in flight                                                  | decode B                   | 0    | 0
        5    |                                                                     | nothing                    | 0    | 0
        ",
    );
}

#[test]
fn cancelling_a_prompt_in_flight_frees_its_blocks_when_the_step_completes() {
    check(
        "tokens_per_step=4",
        "
        step | arrives                                                | plan             | ends     | used
        1    | A prompt=12 output=9 n=2, cancel A in flight           | prefill A[0..4]  |          | 0
        2    | B prompt=4 output=1                                    | prefill B[0..4]  | B length | 0
        ",
    );
}

#[test]
fn cancelling_answers_and_preempted_requests_frees_everything() {
    // B is thrown out in step 8 (as above), then cancelled while it waits; then C's answers in the middle of decode.
    check(
        "block_size=4 blocks=5 seqs=3 tokens_per_step=16",
        "
        step | arrives                                    | plan                            | used | waiting
        1    | A prompt=3 output=10, B prompt=2 output=8  | prefill A[0..3] B[0..2]         | 2    | 0
        2    |                                            | decode A B                      | 2    | 0
        3    |                                            | decode A B                      | 3    | 0
        4    |                                            | decode A B                      | 4    | 0
        5    |                                            | decode A B                      | 4    | 0
        6    |                                            | decode A B                      | 4    | 0
        7    |                                            | decode A B                      | 5    | 0
        8    |                                            | preempt B, decode A             | 3    | 1
        9    | cancel B, cancel A                         | nothing                         | 0    | 0
        10   | C prompt=6 output=3 n=3                    | prefill C[0..6]x3               | 2    | 0
        11   | cancel C in flight                         | copy 3>1 3>2, decode C.0 C.1 C.2 | 0   | 0
        12   |                                            | nothing                         | 0    | 0
        ",
    );
}

#[test]
fn a_step_that_failed_is_computed_again_from_what_earlier_steps_cached() {
    check(
        "block_size=4 tokens_per_step=8",
        "
        step | arrives                                          | plan                                       | ends     | used
        1    | A prompt=6 output=3 n=2                          | prefill A[0..6]x2                          |          | 2
        2    | B prompt=6 output=1, fail in flight              | copy 1>2, decode A.0 A.1, prefill B[0..6]  |          | 0
        3    |                                                  | prefill A.0[4..7] A.1[4..7] B[0..2]        |          | 5
        4    |                                                  | decode A.0 A.1, prefill B[2..6]            | A.0 length, A.1 length, B length | 0
        ",
    );
}

#[test]
fn limits_that_cannot_be_served_are_refused() {
    let good = World::new("").scheduler.limits().clone();
    let refused = |change: fn(&mut Limits)| {
        let mut limits = good.clone();
        change(&mut limits);
        Scheduler::new(limits).err().expect("refused")
    };
    assert_eq!(refused(|limits| limits.block_size = 0), LimitsError::Zero { limit: "block_size" });
    assert_eq!(refused(|limits| limits.max_prefill_seqs = 0), LimitsError::Zero { limit: "max_prefill_seqs" });
    let too_small = LimitsError::StepTooSmall { max_num_batched_tokens: 3, max_num_seqs: 4 };
    assert_eq!(refused(|limits| limits.max_num_batched_tokens = 3), too_small);
    let too_many = LimitsError::TooManyBlocks { num_blocks: usize::MAX / 2 };
    assert_eq!(refused(|limits| limits.num_blocks = usize::MAX / 2), too_many);
}

#[test]
fn limits_do_not_print_their_key() {
    let limits = World::new("").scheduler.limits().clone();
    assert!(!format!("{limits:?}").contains("key"));
}

#[test]
fn the_queue_is_bounded_in_requests_and_in_tokens() {
    check(
        "queue=2 queue_tokens=10 seqs=1",
        "
        step | arrives                                                                        | plan             | waiting
        1    | A prompt=30 output=2, B prompt=1: QueueFull                                     | prefill A[0..30] | 0
        2    | B prompt=8 output=2, C prompt=3: QueueFull, D prompt=2, E prompt=1: QueueFull   | decode A         | 2
        ",
    );
}

#[test]
fn what_can_never_run_is_refused() {
    check(
        "block_size=4 blocks=4 context=20 seqs=3",
        "
        step | arrives                                                                             | plan             | ends
        1    | A prompt=0: EmptyPrompt, B prompt=20: TooLong, C prompt=21 output=0: TooLong         | nothing          |
        2    | D prompt=10 output=8: NeverFits, E prompt=6 output=4 n=3 output=7: NeverFits         | nothing          |
        3    | F prompt=4 n=4: TooManyAnswers                                                      | nothing          |
        4    | G prompt=10 output=7                                                                | prefill G[0..10] |
        5    | cancel G, H prompt=6 output=3 n=2                                                   | prefill H[0..6]x2 |
        ",
    );
}

#[test]
fn an_answer_ends_at_the_stop_token() {
    check(
        "",
        "
        step | arrives                       | plan              | ends
        1    | A prompt=3 output=9 eos=2     | prefill A[0..3]   |
        2    | B prompt=3 output=9 eos=1     | decode A, prefill B[0..3] | A stop, B stop
        ",
    );
}

#[test]
fn stop_tokens_are_not_heeded_before_min_tokens() {
    check(
        "",
        "
        step | arrives                            | plan              | ends
        1    | A prompt=3 output=9 min=2 eos=1    | prefill A[0..3]   |
        2    |                                    | decode A          |
        3    |                                    | decode A          | A stop
        ",
    );
}

#[test]
fn a_request_for_no_tokens_has_its_prompt_computed() {
    check(
        "tokens_per_step=4",
        "
        step | arrives                                      | plan               | ends                   | used
        1    | A prompt=6 output=0 cache=off                | prefill A[0..4]    |                        | 2
        2    | B prompt=2 output=0 n=2                      | prefill A[4..6]x0 B[0..2]x0 | A length, B.0 length, B.1 length | 0
        ",
    );
}

#[test]
fn an_answer_ends_at_the_end_of_the_context() {
    check(
        "context=8",
        "
        step | arrives                  | plan              | ends
        1    | A prompt=6 output=50     | prefill A[0..6]   |
        2    |                          | decode A          | A length
        ",
    );
}

#[test]
fn what_a_preempted_sequence_lost_comes_back_from_the_host_tier() {
    // As without a tier, but in step 11 the content that A's block held is saved, and in step 15 B loads it instead of
    // computing it. Then blocks of A's answer, which is over, are pushed out; the second slot has room for the last
    // one.
    check(
        "block_size=4 blocks=6 seqs=3 tokens_per_step=32 host=2",
        "
        step | arrives                                     | plan                               | ends     | used | waiting
        1    | A prompt=7 output=14, B prompt=6 output=9   | prefill A[0..7] B[0..6]            |          | 4    | 0
        2    |                                             | decode A B                         |          | 4    | 0
        3    |                                             | decode A B                         |          | 5    | 0
        4    |                                             | decode A B                         |          | 6    | 0
        5    |                                             | decode A B                         |          | 6    | 0
        6    |                                             | decode A B                         |          | 6    | 0
        7    |                                             | preempt B, decode A                |          | 4    | 1
        8    |                                             | decode A                           |          | 4    | 1
        9    |                                             | decode A                           |          | 4    | 1
        10   |                                             | decode A                           |          | 4    | 1
        11   | C prompt=2 output=1                         | save 3>h0, decode A                |          | 5    | 2
        12   |                                             | decode A                           |          | 5    | 2
        13   |                                             | decode A                           |          | 5    | 2
        14   |                                             | decode A                           | A length | 0    | 2
        15   |                                             | save 4>h1, load h0>B, prefill C[0..2] | C length | 3    | 0
        16   |                                             | prefill B[8..12]                   |          | 3    | 0
        17   |                                             | decode B                           |          | 4    | 0
        18   |                                             | decode B                           | B length | 0    | 0
        ",
    );
}

#[test]
fn the_prefix_cache_survives_in_the_tiers_and_tenants_stay_apart() {
    // A's two full blocks are pushed out by B, go on to disk, and are found there by C, but not by D of another tenant.
    check(
        "block_size=4 blocks=4 seqs=2 host=2 disk=4",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=15 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..15] | B length | 0
        3    | D prompt=9 output=1 like=A:9 salt=7    | save 1>h1 3>h0, spill h1>d2 h0>d3, prefill D[0..9]  | D length | 0
        4    | C prompt=9 output=1 like=A:9           | save 2>h0 1>h1, spill h0>d2 h1>d3, load d1>C d0>C   |          | 3
        5    |                                        | prefill C[8..9]                                     | C length | 0
        6    | E prompt=9 output=1 like=A:9           | prefill E[8..9]                                     | E length | 0
        ",
    );
}

#[test]
fn a_load_that_fails_is_a_miss() {
    // C's read of both of A's blocks fails. C waits again, and enters at once without them.
    check(
        "block_size=4 blocks=4 seqs=2 host=2 disk=4",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=15 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..15] | B length | 0
        3    |                                        | nothing                                             |          | 0
        4    | C prompt=9 output=1 like=A:9           | save 1>h1 3>h0, spill h1>d2 h0>d3, load d1>C d0>C   |          | 3
        5    | disk fails                             | prefill C[0..9]                                     | C length | 0
        ",
    );
}

#[test]
fn blocks_that_are_being_loaded_are_not_free_before_that_has_ended() {
    check(
        "block_size=4 blocks=4 seqs=2 host=2 disk=4",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=15 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..15] | B length | 0
        3    |                                        | nothing                                             |          | 0
        4    | C prompt=9 output=1 like=A:9           | save 1>h1 3>h0, spill h1>d2 h0>d3, load d1>C d0>C   |          | 3
        5    | disk waits, cancel C, D prompt=5 output=1 | nothing                                          |          | 3
        6    | disk waits                             | nothing                                             |          | 3
        7    |                                        | save 2>h0, spill h0>d0, prefill D[0..5]             | D length | 0
        8    | E prompt=9 output=1 like=A:9           | prefill E[8..9]                                     | E length | 0
        ",
    );
}

#[test]
fn others_go_on_while_one_waits_for_the_disk() {
    check(
        "block_size=4 blocks=6 seqs=3 host=2 disk=8",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=23 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..23] | B length | 0
        3    | X prompt=2 output=6                    | prefill X[0..2]                                     |          | 1
        4    | C prompt=9 output=1 like=A:9           | save 5>h0 4>h1, spill h0>d2 h1>d3, load d1>C d0>C, decode X |  | 4
        5    | disk waits, D prompt=3 output=1        | decode X, prefill D[0..3]                           | D length | 4
        6    |                                        | decode X, prefill C[8..9]                           | C length | 2
        ",
    );
}

#[test]
fn the_only_stream_waits_for_blocks_of_one_that_left_while_it_was_loaded() {
    // C leaves and its three blocks stay until the disk has answered; in step 9 X, which runs alone, needs one more
    // than is left. It keeps its own and sits the step out.
    check(
        "block_size=4 blocks=6 seqs=3 host=2 disk=8",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=23 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..23] | B length | 0
        3    | X prompt=7 output=8                    | save 1>h1, spill h1>d2, prefill X[0..7]             |          | 2
        4    | C prompt=9 output=1 like=A:9           | save 4>h0 3>h1, spill h0>d3 h1>d4, load d1>C d0>C, decode X |  | 5
        5    | disk waits, cancel C                   | decode X                                            |          | 6
        6    | disk waits                             | decode X                                            |          | 6
        7    | disk waits                             | decode X                                            |          | 6
        8    | disk waits                             | decode X                                            |          | 6
        9    | disk waits                             | nothing                                             |          | 6
        10   | disk waits                             | nothing                                             |          | 6
        11   |                                        | decode X                                            |          | 4
        12   |                                        | decode X                                            | X length | 0
        ",
    );
}

#[test]
fn nobody_enters_past_one_that_does_not_fit() {
    // B needs 4 of 6 blocks and A holds 3: B waits and holds nothing, and C, which would fit, waits behind it.
    check(
        "block_size=4 blocks=6 seqs=4",
        "
        step | arrives                                                            | plan              | ends     | used | waiting
        1    | A prompt=9 output=3, B prompt=16 output=1, C prompt=2 output=1      | prefill A[0..9]   |          | 3    | 2
        2    |                                                                    | decode A          |          | 3    | 2
        3    |                                                                    | decode A          | A length | 0    | 2
        4    |                                                                    | prefill B[0..16] C[0..2] | B length, C length | 0 | 0
        ",
    );
}

#[test]
fn what_began_elsewhere_is_computed_as_a_victims_tokens_are_and_its_last_row_samples_the_next() {
    check(
        "block_size=4 tokens_per_step=8",
        "
        step | arrives                                | plan              | ends     | used | waiting
        1    | resume A prompt=6 output=5 knows=3     | prefill A[0..8]   |          | 3    | 0
        2    |                                        | decode A          |          | 3    | 0
        3    |                                        | decode A          | A length | 0    | 0
        ",
    );
}

#[test]
fn what_is_cached_of_a_resumed_answer_is_not_computed() {
    // A's answer is that of B, which came with A's prompt and says what A said; all but its last token is there.
    check(
        "block_size=4",
        "
        step | arrives                                         | plan              | ends     | used
        1    | A prompt=8 output=1                             | prefill A[0..8]   | A length | 0
        2    | resume B prompt=8 output=3 like=A:8 knows=1     | decode B          |          | 3
        3    | resume C prompt=8 output=9 like=A:8 knows=5     | decode B, prefill C[8..13] | B length | 4
        ",
    );
}

#[test]
fn of_several_answers_each_resumes_with_its_own_tokens_and_one_that_ended_stays_so() {
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                                       | plan                                  | ends       | used
        1    | resume A prompt=6 output=4 n=3 knows=3/-/1    | prefill A.0[0..9] A.2[0..7]           | A.0 length | 2
        2    |                                               | decode A.2                            |            | 2
        3    |                                               | decode A.2                            | A.2 length | 0
        ",
    );
}

#[test]
fn an_answer_without_a_token_beside_one_that_has_some_is_a_sequence_of_its_own() {
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                                       | plan                      | ends       | used
        1    | resume A prompt=6 output=2 n=2 knows=1/0      | prefill A.0[0..7] A[0..6] | A.0 length | 2
        2    |                                               | decode A.1                | A.1 length | 0
        ",
    );
    // Where none has one, the prompt is computed once, as ever.
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                                       | plan              | ends
        1    | resume A prompt=6 output=2 n=2 knows=0/0      | prefill A[0..6]x2 |
        ",
    );
}

#[test]
fn an_answer_that_is_all_there_is_not_resumed() {
    check(
        "context=20",
        "
        step | arrives                                                                                        | plan            | ends
        1    | resume A prompt=6 output=3 knows=3: HasEnded, resume B prompt=6 output=9 knows=3 eos=2: HasEnded | nothing         |
        2    | resume C prompt=17 output=9 knows=3: HasEnded, resume D prompt=20 output=9 knows=0: TooLong      | nothing         |
        3    | resume E prompt=6 output=9 knows=3 eos=2 min=8                                                   | prefill E[0..9] |
        4    | resume F prompt=17 output=9 knows=2                                                              | decode E, prefill F[0..19] | F length
        ",
    );
}

#[test]
fn who_comes_with_tokens_counts_in_the_queue_like_anybody() {
    check(
        "queue=2 queue_tokens=10 seqs=1",
        "
        step | arrives                                                                                 | plan             | waiting
        1    | A prompt=30 output=2                                                                    | prefill A[0..30] | 0
        2    | resume B prompt=8 output=9 knows=5, resume C prompt=3 output=9 knows=1: QueueFull       | decode A         | 1
        3    | D prompt=2, resume E prompt=1 output=2 knows=1: QueueFull                               | prefill B[0..13] | 1
        4    | expect F prompt=2, expect G prompt=1: QueueFull, H prompt=1: QueueFull                  | decode B         | 1
        5    | cancel F, I prompt=1                                                                    | decode B         | 2
        ",
    );
}

#[test]
fn what_is_expected_waits_for_nothing_and_comes_in_its_place() {
    check(
        "block_size=4 seqs=1",
        "
        step | arrives                                             | plan              | ends     | used | waiting
        1    | expect A prompt=6 output=3, B prompt=4 output=2     | prefill B[0..4]   |          | 1    | 0
        2    | C prompt=4 output=1, come A knows=1                 | decode B          | B length | 0    | 2
        3    |                                                     | prefill A[0..7]   |          | 2    | 1
        4    |                                                     | decode A          | A length | 0    | 1
        5    |                                                     | prefill C[0..4]   | C length | 0    | 0
        ",
    );
}

#[test]
fn an_expected_request_of_which_nothing_comes_is_read_here_and_a_cancelled_one_is_gone() {
    check(
        "block_size=4 seqs=2",
        "
        step | arrives                                                        | plan              | used | waiting
        1    | expect A prompt=6 output=3 n=2, expect B prompt=6 output=1     | nothing           | 0    | 0
        2    | come A knows=0/0, cancel B                                     | prefill A[0..6]x2 | 2    | 0
        3    | cancel A                                                       | nothing           | 0    | 0
        ",
    );
}

#[test]
fn kept_blocks_are_free_and_taken_last() {
    // A's two full blocks are kept, B's are not, though B came later: C takes the plain ones, then B's, then of A's the
    // last. D takes the rest of it, and finds nothing of A.
    check(
        "block_size=4 blocks=6",
        "
        step | arrives                                | plan               | ends     | used | lost
        1    | A prompt=9 output=1 keep=100           | prefill A[0..9]    | A length | 0    |
        2    | B prompt=8 output=1                    | prefill B[0..8]    | B length | 0    |
        3    | C prompt=16 output=1                   | prefill C[0..16]   | C length | 0    |
        4    | D prompt=20 output=1                   | prefill D[0..20]   | D length | 0    | A:1 blocks
        5    | E prompt=24 output=1                   | prefill E[0..24]   | E length | 0    | A:0 blocks
        6    | F prompt=9 output=1 like=A:9           | prefill F[0..9]    | F length | 0    |
        ",
    );
}

#[test]
fn of_two_kept_answers_the_one_kept_longest_gives_way() {
    check(
        "block_size=4 blocks=6",
        "
        step | arrives                                                                          | plan                    | lost
        1    | A prompt=8 output=1 keep=100                                                     | prefill A[0..8]         |
        2    | B prompt=8 output=1 keep=100                                                     | prefill B[0..8]         |
        3    | C prompt=12 output=1                                                             | prefill C[0..12]        | A:1 blocks
        4    | D prompt=9 output=1 like=B:8                                                     | prefill D[8..9]         |
        ",
    );
}

#[test]
fn a_lease_ends_in_the_first_plan_after_it_and_release_ends_it_at_once() {
    check(
        "block_size=4 blocks=4",
        "
        step | arrives                                  | plan               | ends     | used | lost
        1    | A prompt=9 output=1 keep=7               | prefill A[0..9]    | A length | 0    |
        2    | at 6                                     | nothing            |          | 0    |
        3    | at 7                                     | nothing            |          | 0    | A:0 lease
        4    | B prompt=9 output=1 like=A:9 keep=7      | prefill B[8..9]    | B length | 0    |
        5    | release B, at 100                        | nothing            |          | 0    |
        6    | C prompt=9 output=1 like=A:9 keep=7      | prefill C[8..9]    | C length | 0    |
        ",
    );
}

#[test]
fn what_is_too_short_or_cancelled_or_stopped_is_not_kept() {
    check(
        "block_size=4 seqs=4",
        "
        step | arrives                                                                   | plan                            | ends       | lost
        1    | A prompt=3 output=1 keep=7, B prompt=8 output=9 keep=7, C prompt=8 output=9 n=2 keep=7 | prefill A[0..3] B[0..8] C[0..8]x2 | A length |
        2    | cancel B, stop C.1                                                        | decode C.0                      |            |
        3    | cancel C, at 100                                                          | nothing                         |            |
        ",
    );
}

#[test]
fn a_prompt_that_runs_is_read_block_by_block_as_they_are_computed() {
    check(
        "block_size=4 tokens_per_step=6",
        "
        step | arrives                                              | plan              | ends     | used
        1    | A prompt=11 output=1 keep=7, cannot read A:0         | prefill A[0..6]   |          | 3
        2    | read A:0, cannot read A:1                            | prefill A[6..11]  | A length | 1
        3    | read A:1, cannot read A:2                            | nothing           |          | 2
        4    | reads end                                            | nothing           |          | 0
        ",
    );
}

#[test]
fn a_block_that_is_read_is_taken_by_nobody() {
    // B would need all four blocks; it waits for the one that is read, though its request is gone.
    check(
        "block_size=4 blocks=4",
        "
        step | arrives                                     | plan               | ends     | used | lost       | waiting
        1    | A prompt=9 output=1 keep=100                | prefill A[0..9]    | A length | 0    |            | 0
        2    | read A:1, B prompt=16 output=1              | nothing            |          | 1    |            | 1
        3    | release A                                   | nothing            |          | 1    |            | 1
        4    | reads end                                   | prefill B[0..16]   | B length | 0    |            | 0
        ",
    );
}

#[test]
fn the_only_stream_waits_for_a_block_that_is_read() {
    check(
        "block_size=4 blocks=4",
        "
        step | arrives                                     | plan               | ends     | used | lost
        1    | A prompt=9 output=1 keep=100                | prefill A[0..9]    | A length | 0    |
        2    | X prompt=7 output=9                         | prefill X[0..7]    |          | 2    |
        3    | read A:0, read A:1                          | decode X           |          | 4    |
        4    |                                             | nothing            |          | 4    |
        5    | reads end                                   | decode X           |          | 3    | A:1 blocks
        6    | read A:0                                    | decode X           |          | 4    |
        ",
    );
}

#[test]
fn blocks_that_are_being_loaded_cannot_be_read() {
    check(
        "block_size=4 blocks=4 seqs=2 host=2 disk=4",
        "
        step | arrives                                | plan                                                | ends     | used
        1    | A prompt=9 output=1                    | prefill A[0..9]                                     | A length | 0
        2    | B prompt=15 output=1                   | save 1>h0 0>h1, spill h0>d0 h1>d1, prefill B[0..15] | B length | 0
        3    |                                        | nothing                                             |          | 0
        4    | C prompt=9 output=3 like=A:9           | save 1>h1 3>h0, spill h1>d2 h0>d3, load d1>C d0>C   |          | 3
        5    | disk waits, cannot read C:0            | nothing                                             |          | 3
        6    |                                        | prefill C[8..9]                                     |          | 3
        7    | read C:1                               | decode C                                            |          | 3
        ",
    );
}

#[test]
fn what_landed_from_elsewhere_is_loaded_and_the_tail_is_computed() {
    // Other requests find it too, if it is their tenant's.
    check(
        "block_size=4 host=4",
        "
        step | arrives                                                                   | plan                      | ends     | used
        1    | expect A prompt=9 output=3, land A:0 good, land A:1 good                   | nothing                   |          | 0
        2    | come A knows=1                                                            | load h0>A h1>A            |          | 3
        3    |                                                                           | prefill A[8..10]          |          | 3
        4    | B prompt=9 output=1 like=A:9, C prompt=9 output=1 like=A:9 salt=7         | decode A, prefill B[8..9] C[0..9] | A length, B length, C length | 0
        ",
    );
}

#[test]
fn blocks_land_in_their_order_once_and_never_the_last_token() {
    check(
        "block_size=4 host=4",
        "
        step | arrives                                                                                    | plan
        1    | expect A prompt=12 output=3, land A:1 NoParent, land A:0 spoiled, land A:1 NoParent         | nothing
        2    | land A:0 good, land A:0 Known, land A:1 good, land A:2 NotCached         | nothing
        3    | come A knows=0                                                                             | load h0>A h1>A
        4    | land A:0 NotWaiting                                                                        | prefill A[8..12]
        5    | expect B prompt=9 output=1 cache=off, land B:0 NotCached, cancel B, land B:0 NotWaiting     | decode A
        ",
    );
}

#[test]
fn a_block_takes_the_slot_of_others_and_never_its_parents() {
    // The end of a prefix gives way before its beginning.
    check(
        "block_size=4 host=2",
        "
        step | arrives                                                                                  | plan
        1    | expect A prompt=13 output=3, land A:0 good, land A:1 good, land A:2 NoRoom                | nothing
        2    | expect B prompt=9 output=3, land B:0 good, land A:1 NoRoom, come A knows=1, land A:1 NoRoom | load h0>A
        3    | come B knows=1                                                                           | load h1>B, prefill A[4..14]
        4    |                                                                                          | decode A, prefill B[4..10]
        ",
    );
}

#[test]
fn without_a_tier_nothing_lands() {
    check(
        "block_size=4",
        "
        step | arrives                                                      | plan
        1    | expect A prompt=13 output=3, land A:0 NoRoom, come A knows=1  | prefill A[0..14]
        ",
    );
}

struct World {
    scheduler: Scheduler,
    names: BTreeMap<RequestId, String>,
    asked: BTreeMap<String, (Request, Option<usize>)>,
    /// What the disk was asked for.
    reads: Vec<BlockLoad>,
    writes: Vec<SlotSpill>,
    /// How many drafts of a sequence hold.
    right: BTreeMap<SeqId, usize>,
    now: Nanos,
}

fn check(setup: &str, table: &str) {
    let mut world = World::new(setup);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let (header, rows) = rows.split_first().expect("a table has a header");
    let mut expected = String::new();
    let mut actual = String::new();
    for row in rows {
        let arrives = row[column(header, "arrives").expect("a table says what arrives")];
        let outcome = world.row(arrives);
        for (name, cell) in header.iter().zip(row) {
            let actual_cell = match *name {
                "step" | "arrives" => *cell,
                "plan" => &outcome.plan,
                "ends" => &outcome.ends,
                "used" => &outcome.used,
                "waiting" => &outcome.waiting,
                "lost" => &outcome.lost,
                _ => panic!("no column {name}"),
            };
            write!(expected, "{cell} | ").unwrap();
            write!(actual, "{actual_cell} | ").unwrap();
        }
        expected.push('\n');
        actual.push('\n');
    }
    assert!(expected == actual, "{setup}\nexpected\n{expected}\nactual\n{actual}");
}

fn column(header: &[&str], name: &str) -> Option<usize> {
    header.iter().position(|&column| column == name)
}

/// What the model says as token `nth` of an answer, from 1.
fn said(request: &Request, eos: Option<usize>, answer: usize, nth: usize) -> TokenId {
    let unique = 1_000_000 + request.id.0 * 10_000 + answer as u64 * 1000;
    if eos.is_some_and(|eos| nth >= eos) { EOS } else { (unique + nth as u64) as u32 }
}

/// So many tokens of each answer: `3/0/-`.
fn generated(request: &Request, eos: Option<usize>, knows: &str) -> Vec<Option<Vec<TokenId>>> {
    let of = |(answer, count): (usize, &str)| {
        let count: usize = count.parse().ok()?;
        Some((1..=count).map(|nth| said(request, eos, answer, nth)).collect())
    };
    knows.split('/').enumerate().map(of).collect()
}

struct Outcome {
    plan: String,
    ends: String,
    used: String,
    waiting: String,
    lost: String,
}

impl World {
    fn new(setup: &str) -> World {
        let mut limits = Limits {
            num_blocks: 64,
            max_model_len: 100,
            max_num_batched_tokens: 64,
            max_prefill_chunk: 64,
            max_queued_requests: 100,
            max_queued_tokens: 1000,
            ..plans::small()
        };
        let mut tiers = TierSizes::default();
        for (name, value) in setup.split_whitespace().map(|word| word.split_once('=').expect("name=value")) {
            let value: usize = value.parse().expect("a number");
            match name {
                "block_size" => limits.block_size = value,
                "blocks" => limits.num_blocks = value,
                "context" => limits.max_model_len = value,
                "seqs" => limits.max_num_seqs = value,
                "tokens_per_step" => limits.max_num_batched_tokens = value,
                "chunk" => limits.max_prefill_chunk = value,
                "prompts_per_step" => limits.max_prefill_seqs = value,
                "queue" => limits.max_queued_requests = value,
                "queue_tokens" => limits.max_queued_tokens = value,
                "cache" => limits.enable_prefix_caching = value == 1,
                "host" => tiers.host_slots = value,
                "disk" => tiers.disk_slots = value,
                _ => panic!("no limit {name}"),
            }
        }
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_tiers(tiers);
        World {
            scheduler,
            names: BTreeMap::new(),
            asked: BTreeMap::new(),
            right: BTreeMap::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            now: Nanos(0),
        }
    }

    fn row(&mut self, arrives: &str) -> Outcome {
        let (in_flight, before): (Vec<&str>, Vec<&str>) = arrives
            .split(',')
            .map(str::trim)
            .filter(|act| !act.is_empty())
            .partition(|act| act.ends_with(" in flight"));
        if !before.contains(&"disk waits") {
            self.disk_ends(!before.contains(&"disk fails"));
        }
        before.into_iter().filter(|act| !act.starts_with("disk ")).for_each(|act| self.act(act));
        let step = self.scheduler.schedule(self.now);
        self.scheduler.check_invariants();
        let lost = step.lost.iter().map(|lost| {
            let why = if lost.why == KeptEnd::Lease { "lease" } else { "blocks" };
            format!("{}:{} {why}", self.answer_name(lost.request, lost.answer), lost.left)
        });
        let lost = lost.collect::<Vec<_>>().join(", ");
        let plan = self.describe(&step);
        self.transfer(&step);
        let output = self.compute(&step);
        let (failures, in_flight): (Vec<&str>, Vec<&str>) =
            in_flight.into_iter().partition(|act| act.starts_with("fail "));
        in_flight.into_iter().for_each(|act| self.act(act.trim_end_matches(" in flight")));
        let mut ends = Vec::new();
        if !failures.is_empty() {
            self.scheduler.abandon(step.id);
            self.scheduler.check_invariants();
        } else if !step.is_empty() {
            let completed = self.scheduler.complete(output, self.now);
            self.scheduler.check_invariants();
            for event in completed.events {
                if let Event::Finished { request, answer, reason } = event {
                    let reason = match reason {
                        FinishReason::Length => "length",
                        FinishReason::Stop(Some(EOS)) => "stop",
                        other => panic!("{other:?}"),
                    };
                    ends.push(format!("{} {reason}", self.answer_name(request, answer)));
                }
            }
        }
        let used = self.scheduler.used_blocks().to_string();
        let waits = |seq: &&Sequence| seq.block_table().is_empty() && !seq.is_expecting();
        let waiting = self.scheduler.sequences().filter(waits).count().to_string();
        Outcome { plan, ends: ends.join(", "), used, waiting, lost }
    }

    fn transfer(&mut self, step: &Step) {
        self.writes.extend(&step.spills);
        for &load in &step.loads {
            match load.slot.tier {
                Tier::Host => self.scheduler.load_ended(load, true, Nanos(0)),
                Tier::Disk => self.reads.push(load),
            }
            self.scheduler.check_invariants();
        }
    }

    fn disk_ends(&mut self, good: bool) {
        for spill in std::mem::take(&mut self.writes) {
            self.scheduler.spill_ended(spill, good, Nanos(0));
            self.scheduler.check_invariants();
        }
        for load in std::mem::take(&mut self.reads) {
            self.scheduler.load_ended(load, good, Nanos(0));
            self.scheduler.check_invariants();
        }
    }

    fn act(&mut self, act: &str) {
        if let Some(name) = act.strip_prefix("cancel ") {
            assert!(self.scheduler.abort(self.asked[name].0.id), "{name} was there to cancel");
        } else if let Some(offer) = act.strip_prefix("offer ") {
            let (name, words) = offer.split_once('=').expect("offer A=4");
            let (len, right) = words.split_once(" right=").unwrap_or((words, "0"));
            let id = self.asked[name].0.id;
            let seq = self.scheduler.sequences().find(|seq| seq.request_id() == id).expect("it is there").id();
            let len = len.parse().expect("how many drafts");
            self.scheduler.offer(Offer { seq, source: SourceId(0), len, strength: 0 });
            self.right.insert(seq, right.parse().expect("how many hold"));
        } else if let Some(answer) = act.strip_prefix("stop ") {
            let (name, answer) = answer.split_once('.').unwrap_or((answer, "0"));
            self.scheduler.stop(self.asked[name].0.id, answer.parse().expect("an answer's number"));
        } else if let Some(now) = act.strip_prefix("at ") {
            self.now = Nanos(now.parse().expect("a time"));
        } else if let Some(block) = act.strip_prefix("land ") {
            let (block, outcome) = block.split_once(' ').expect("land A:1 good");
            let (name, index) = block.split_once(':').expect("A:1");
            match self.scheduler.adopt(self.asked[name].0.id, index.parse().expect("which block")) {
                Ok(slot) => {
                    self.scheduler.check_invariants();
                    let landed = self.scheduler.adopted(slot, outcome == "good");
                    assert_eq!(if landed { "good" } else { "spoiled" }, outcome, "{act}");
                }
                Err(error) => assert_eq!(format!("{error:?}"), outcome, "{act}"),
            }
        } else if let Some(name) = act.strip_prefix("release ") {
            assert!(self.scheduler.release(self.asked[name].0.id), "{name} was kept");
        } else if let Some(of) = act.strip_prefix("read ") {
            assert!(self.begin_read(of).is_some(), "{act}");
        } else if let Some(of) = act.strip_prefix("cannot read ") {
            assert_eq!(self.begin_read(of), None, "{act}");
        } else if act == "reads end" {
            self.scheduler.reads().to_vec().into_iter().for_each(|read| self.scheduler.read_ended(read));
        } else if let Some(come) = act.strip_prefix("come ") {
            let (name, knows) = come.split_once(" knows=").expect("come A knows=1");
            let (request, eos) = self.asked[name].clone();
            let generated = generated(&request, eos, knows);
            let generated: Vec<_> = generated.iter().map(Option::as_deref).collect();
            self.scheduler.expected_ended(request.id, &generated, Nanos(0)).expect("it goes on");
        } else {
            let (request, refusal) = act.split_once(": ").unwrap_or((act, ""));
            let outcome = self.admit(request);
            let outcome = outcome.err().map(|error| format!("{error:?}")).unwrap_or_default();
            let outcome = outcome.split_whitespace().next().unwrap_or_default();
            assert_eq!(outcome, refusal, "{act}");
        }
        self.scheduler.check_invariants();
    }

    /// Of an answer's block: `A:1`.
    fn begin_read(&mut self, of: &str) -> Option<BlockRead> {
        let (name, index) = of.split_once(':').expect("A:1");
        self.scheduler.begin_read(self.asked[name].0.id, 0, index.parse().expect("which block"))
    }

    fn admit(&mut self, words: &str) -> Result<(), scheduler::AdmitError> {
        let (door, words) = match words.split_once(' ') {
            Some((door @ ("resume" | "expect"), words)) => (door, words),
            _ => ("admit", words),
        };
        let mut words = words.split_whitespace();
        let name = words.next().expect("a name").to_string();
        let number = self.names.len() as u64;
        let (mut prompt_len, mut like, mut eos, mut knows, mut keep) = (0, None, None, "", None);
        let mut request = Request {
            stop: StopRules { max_tokens: 1, min_tokens: 0, stop_token_ids: vec![EOS] },
            ..plans::request(number, [])
        };
        for (word, value) in words.map(|word| word.split_once('=').expect("name=value")) {
            let parsed = value.parse::<usize>();
            match (word, parsed) {
                ("prompt", Ok(tokens)) => prompt_len = tokens,
                ("output", Ok(tokens)) => request.stop.max_tokens = tokens,
                ("min", Ok(tokens)) => request.stop.min_tokens = tokens,
                ("keep", Ok(lease)) => keep = Some(Nanos(lease as u64)),
                ("eos", Ok(token)) => eos = Some(token),
                ("n", Ok(answers)) => request.num_answers = answers,
                ("priority", Ok(class)) => request.priority = Priority(class as i32),
                ("salt", Ok(salt)) => request.salt = salt as u64,
                ("cache", Err(_)) => request.use_prefix_cache = value == "on",
                ("like", Err(_)) => like = value.split_once(':'),
                ("knows", _) => knows = value,
                _ => panic!("no word {word}={value}"),
            }
        }
        let mut prompt: Vec<TokenId> = (0..prompt_len).map(|at| (number as u32 + 1) * 1000 + at as u32).collect();
        if let Some((other, len)) = like {
            let len: usize = len.parse().expect("a length");
            prompt[..len].copy_from_slice(&self.asked[other].0.prompt[..len]);
        }
        request.prompt = prompt.into();
        self.names.insert(request.id, name.clone());
        self.asked.insert(name, (request.clone(), eos));
        let id = request.id;
        match door {
            "resume" => {
                let generated = generated(&request, eos, knows);
                let generated: Vec<_> = generated.iter().map(Option::as_deref).collect();
                self.scheduler.resume(request, &generated, Nanos(0))
            }
            "expect" => self.scheduler.expect(request),
            _ => self.scheduler.admit(request),
        }?;
        assert!(keep.is_none_or(|lease| self.scheduler.keep(id, lease)));
        Ok(())
    }

    /// The model: it says tokens that never repeat, and the stop token when it was told to.
    fn compute(&self, step: &Step) -> StepOutput {
        let mut output = StepOutput { step: step.id, ..StepOutput::default() };
        for rows in step.rows() {
            let seq = rows.seq;
            let seq_state = self.scheduler.sequence(seq).expect("it is planned");
            let (_, eos) = &self.asked[&self.names[&seq_state.request_id()]];
            if rows.drafts > 0 {
                let held = self.right[&seq].min(rows.drafts);
                for nth in seq_state.num_generated() + 1..=seq_state.num_generated() + 1 + held {
                    let is_eos = eos.is_some_and(|eos| nth >= eos);
                    output.rows.push(RowOutput { seq, token: if is_eos { EOS } else { 2_000_000 + nth as u32 } });
                }
                continue;
            }
            let token = |sample: usize| {
                said(seq_state.request(), *eos, seq_state.answer() + sample, seq_state.num_generated() + 1)
            };
            output.rows.extend((0..rows.samples).map(|sample| RowOutput { seq, token: token(sample) }));
        }
        output
    }

    fn describe(&self, step: &Step) -> String {
        let mut parts = Vec::new();
        let mut part = |verb: &str, items: Vec<String>| {
            if !items.is_empty() {
                parts.push(format!("{verb} {}", items.join(" ")));
            }
        };
        part("preempt", step.preempted.iter().map(|&seq| self.name(seq)).collect());
        let slot = |slot: TierSlot| format!("{}{}", if slot.tier == Tier::Host { 'h' } else { 'd' }, slot.index);
        part("save", step.saves.iter().map(|save| format!("{}>{}", save.block.0, slot(save.slot))).collect());
        part("spill", step.spills.iter().map(|spill| format!("{}>{}", slot(spill.host), slot(spill.disk))).collect());
        part("load", step.loads.iter().map(|load| format!("{}>{}", slot(load.slot), self.name(load.seq))).collect());
        part("copy", step.copies.iter().map(|copy| format!("{}>{}", copy.src.0, copy.dst.0)).collect());
        let drafts = |row: &Rows| if row.drafts > 0 { format!("+{}", row.drafts) } else { String::new() };
        part("decode", step.decode.iter().map(|row| self.name(row.seq) + &drafts(row)).collect());
        let chunks = step.prefill.iter().map(|chunk| {
            let seq = self.scheduler.sequence(chunk.seq).expect("it is planned");
            let (end, ends_here) = (chunk.start + chunk.len, chunk.start + chunk.len == seq.num_tokens());
            let samples = if ends_here && chunk.samples != 1 { format!("x{}", chunk.samples) } else { String::new() };
            assert!(ends_here || chunk.samples == 0, "nothing is sampled before the last known token");
            format!("{}[{}..{end}]{samples}", self.name(chunk.seq), chunk.start)
        });
        part("prefill", chunks.collect());
        if parts.is_empty() { "nothing".to_string() } else { parts.join(", ") }
    }

    fn name(&self, seq: SeqId) -> String {
        let seq = self.scheduler.sequence(seq).expect("it is known");
        if seq.num_generated() == 0 {
            return self.names[&seq.request_id()].clone();
        }
        self.answer_name(seq.request_id(), seq.answer())
    }

    fn answer_name(&self, request: RequestId, answer: usize) -> String {
        let name = &self.names[&request];
        if self.asked[name].0.num_answers == 1 { name.clone() } else { format!("{name}.{answer}") }
    }
}
