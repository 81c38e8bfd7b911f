//! Worker roles, and when to switch one: some loads need more prefill workers by day and more decode workers by night
//! (Splitwise's mixed pool: Patel et al., ISCA 2024).
//!
//! ```text
//!            3 decisions in a row without an on-time        the decode worker with the least KV in use, below half;
//!            prefill worker                                 its running requests continue
//! decode ---------------------------------------------> prefill
//!    ^                                                     |
//!    +---- its prefill queue is empty, and 20 decisions in a row had another on-time prefill worker ----+
//! ```
//! A role only says which requests a worker accepts: a switch moves and stops nothing.

use protocol::Nanos;

/// Which requests a worker accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Prompts of other workers, for prefill.
    Prefill,
    /// Client requests; may send prompts to prefill workers.
    Decode,
    /// All.
    #[default]
    Both,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Prefill, Role::Decode, Role::Both];

    /// Its name in flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Both => "both",
        }
    }

    /// Whether it prefills for other workers.
    pub fn reads(self) -> bool {
        self != Role::Decode
    }

    /// Whether it takes client requests.
    pub fn answers(self) -> bool {
        self != Role::Prefill
    }
}

/// A worker, for role decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoleView {
    /// The configured role.
    pub home: Role,
    /// The current role.
    pub role: Role,
    /// Fraction of KV blocks in use.
    pub kv_share: f64,
    /// Prompt tokens still to prefill.
    pub unread_tokens: usize,
}

/// A role change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Index of the worker.
    pub worker: usize,
    /// Its new role.
    pub role: Role,
}

/// Consecutive decisions without an on-time prefill worker that switch a helper, and with one that switch it back. A
/// helper that leaves too early is recalled by prompts that are late by then; one that stays too long idles.
const LATE_IN_A_ROW: u32 = 3;
const IN_TIME_IN_A_ROW: u32 = 20;
/// Workers with a larger fraction of KV blocks in use do not help.
const MOST_KV: f64 = 0.5;

/// Recent decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleMemory {
    /// Consecutive decisions without an on-time prefill worker, and with one.
    late: u32,
    in_time: u32,
    /// No switch before this time: the last one has yet to take effect.
    rests_until: Nanos,
}

impl RoleMemory {
    /// Records a placed prompt; `in_time`: a worker with configured role prefill meets its TTFT target.
    pub fn placed(&mut self, in_time: bool) {
        (self.late, self.in_time) = if in_time { (0, self.in_time + 1) } else { (self.late + 1, 0) };
    }
}

/// The role change to make now, if any, given all `workers` and recent decisions. Returned once; no other within
/// `rest`. Cost: linear in the workers.
pub fn advise(memory: &mut RoleMemory, workers: &[RoleView], now: Nanos, rest: Nanos) -> Option<Switch> {
    if now < memory.rests_until {
        return None;
    }
    let that_decode_at_home =
        |role| workers.iter().enumerate().filter(move |(_, worker)| (worker.home, worker.role) == (Role::Decode, role));
    let has_read = |(_, worker): &(usize, &RoleView)| memory.in_time >= IN_TIME_IN_A_ROW && worker.unread_tokens == 0;
    // At least one decode worker stays.
    let may_go = memory.late >= LATE_IN_A_ROW && that_decode_at_home(Role::Decode).count() > 1;
    let has_room = |(_, worker): &(usize, &RoleView)| may_go && worker.kv_share < MOST_KV;
    let away = || {
        let workers = that_decode_at_home(Role::Decode).filter(has_room);
        workers.min_by(|(_, a), (_, b)| a.kv_share.total_cmp(&b.kv_share))
    };
    let switch = match that_decode_at_home(Role::Prefill).find(has_read) {
        Some((worker, _)) => Switch { worker, role: Role::Decode },
        None => Switch { worker: away()?.0, role: Role::Prefill },
    };
    *memory = RoleMemory { rests_until: Nanos(now.0.saturating_add(rest.0)), ..RoleMemory::default() };
    Some(switch)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Nanos = Nanos(100);

    fn worker(home: Role, role: Role, kv_share: f64, unread_tokens: usize) -> RoleView {
        RoleView { home, role, kv_share, unread_tokens }
    }

    fn placed(memory: &mut RoleMemory, in_time: bool, times: u32) {
        (0..times).for_each(|_| memory.placed(in_time));
    }

    #[test]
    fn the_emptiest_helps_after_three_decisions_without_a_reader_in_time() {
        use Role::{Decode, Prefill};
        let workers = [
            worker(Prefill, Prefill, 0.0, 9000),
            worker(Decode, Decode, 0.4, 0),
            worker(Decode, Decode, 0.2, 0),
            worker(Decode, Decode, 0.6, 0),
        ];
        let mut memory = RoleMemory::default();
        placed(&mut memory, false, 2);
        placed(&mut memory, true, 1);
        placed(&mut memory, false, 2);
        assert_eq!(advise(&mut memory, &workers, Nanos(0), REST), None, "not in a row");
        memory.placed(false);
        let expected = Switch { worker: 2, role: Prefill };
        assert_eq!(advise(&mut memory, &workers, Nanos(0), REST), Some(expected));
        placed(&mut memory, false, 3);
        assert_eq!(advise(&mut memory, &workers, Nanos(99), REST), None, "the change has to show first");
        assert!(advise(&mut memory, &workers, Nanos(100), REST).is_some());
    }

    #[test]
    fn the_last_that_decodes_and_those_with_enough_to_do_stay() {
        use Role::{Decode, Prefill};
        let away = worker(Decode, Prefill, 0.1, 5000);
        for workers in [[away, worker(Decode, Decode, 0.1, 0)], [worker(Decode, Decode, 0.5, 0); 2]] {
            let mut memory = RoleMemory::default();
            placed(&mut memory, false, 9);
            assert_eq!(advise(&mut memory, &workers, Nanos(0), REST), None, "{workers:?}");
        }
    }

    #[test]
    fn a_helper_goes_home_when_nothing_is_left_to_read_and_others_are_in_time() {
        use Role::{Decode, Prefill};
        let helper = |unread| [worker(Prefill, Prefill, 0.0, 0), worker(Decode, Prefill, 0.1, unread)];
        let mut memory = RoleMemory::default();
        placed(&mut memory, true, IN_TIME_IN_A_ROW - 1);
        assert_eq!(advise(&mut memory, &helper(0), Nanos(0), REST), None);
        memory.placed(true);
        assert_eq!(advise(&mut memory, &helper(1), Nanos(0), REST), None);
        assert_eq!(advise(&mut memory, &helper(0), Nanos(0), REST), Some(Switch { worker: 1, role: Decode }));
    }
}
