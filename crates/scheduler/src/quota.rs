//! Something bounded that tenants share: places in a queue, memory for answers.
//!
//! ```text
//! limit |AAAAAAAAAAAAAAAAAAAA|BBBBBB|             |
//!        taken by A            by B   free          no tenant may hold more than is left free
//! ```
//!
//! Where tenants share, one may take more only while it then holds no more than what it leaves free: alone it gets
//! half, two that both want all get a third each, and there is always room for the next to come. The rule needs no
//! count of tenants (dynamic thresholds: Choudhury & Hahne, 1998, with alpha 1).

use alloc::collections::BTreeMap;

/// Why there was nothing left. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// All together hold too much.
    Full,
    /// This tenant holds its share of what others may need as well.
    TenantQueueFull,
}

/// See the module's picture. Amounts are whatever is counted: requests, tokens, bytes.
#[derive(Clone, Debug)]
pub struct Quota {
    limit: u64,
    is_shared: bool,
    taken: u64,
    /// Tenants that hold something, and how much.
    holders: BTreeMap<u64, u64>,
}

impl Quota {
    /// So much for all. `is_shared`: several tenants may come, and none of them may take it all.
    pub fn new(limit: u64, is_shared: bool) -> Quota {
        Quota { limit, is_shared, taken: 0, holders: BTreeMap::new() }
    }

    /// Takes `amount` for `tenant`, or nothing.
    pub fn take(&mut self, tenant: u64, amount: u64) -> Result<(), QuotaExceeded> {
        let free = self.limit.saturating_sub(self.taken);
        if amount > free {
            return Err(QuotaExceeded::Full);
        }
        if self.is_shared && self.held_by(tenant) + amount > (free - amount).max(1) {
            return Err(QuotaExceeded::TenantQueueFull);
        }
        self.hold(tenant, amount);
        Ok(())
    }

    /// Takes `amount` whether there is room or not.
    pub fn hold(&mut self, tenant: u64, amount: u64) {
        self.taken = self.taken.saturating_add(amount);
        let held = self.holders.entry(tenant).or_default();
        *held = held.saturating_add(amount);
    }

    /// Gives back what [`take`](Self::take) or [`hold`](Self::hold) gave.
    pub fn give_back(&mut self, tenant: u64, amount: u64) {
        self.taken = self.taken.saturating_sub(amount);
        if let Some(held) = self.holders.get_mut(&tenant) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.holders.remove(&tenant);
            }
        }
    }

    /// What all hold together.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What one tenant holds.
    pub fn held_by(&self, tenant: u64) -> u64 {
        self.holders.get(&tenant).copied().unwrap_or(0)
    }
}

/// Which of several things to forget, by their owners, oldest first: the oldest of the tenant that has the most. So a
/// tenant that fills a memory of bounded size pushes out its own. `None` of nothing.
pub fn to_forget<T: Ord>(owners: impl Iterator<Item = T> + Clone) -> Option<usize> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    owners.clone().for_each(|owner| *counts.entry(owner).or_default() += 1);
    let most = counts.into_iter().max_by_key(|&(_, count)| count)?.0;
    owners.into_iter().position(|owner| owner == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_owner_is_forgotten_first() {
        assert_eq!(to_forget([0u64; 0].iter()), None);
        assert_eq!(to_forget([A].iter()), Some(0));
        assert_eq!(to_forget([A, B, B, A, B].iter()), Some(1));
        assert_eq!(to_forget([A, B, C, C].iter()), Some(2));
    }

    const A: u64 = 1;
    const B: u64 = 2;
    const C: u64 = 3;

    /// Takes as much as there is to have, one by one.
    fn grab(quota: &mut Quota, tenant: u64) -> (u64, QuotaExceeded) {
        loop {
            if let Err(no_room) = quota.take(tenant, 1) {
                return (quota.held_by(tenant), no_room);
            }
        }
    }

    #[test]
    fn a_lone_tenant_gets_all() {
        let mut quota = Quota::new(100, false);
        assert_eq!(grab(&mut quota, A), (100, QuotaExceeded::Full));
        quota.give_back(A, 1);
        assert_eq!(grab(&mut quota, A), (100, QuotaExceeded::Full));
    }

    #[test]
    fn there_is_always_room_for_the_next_to_come() {
        let mut quota = Quota::new(120, true);
        assert_eq!(grab(&mut quota, A), (60, QuotaExceeded::TenantQueueFull));
        assert_eq!(grab(&mut quota, B), (30, QuotaExceeded::TenantQueueFull));
        assert_eq!(grab(&mut quota, C), (15, QuotaExceeded::TenantQueueFull));
        // What A gives back is shared out anew.
        quota.give_back(A, 60);
        assert_eq!(grab(&mut quota, B), (52, QuotaExceeded::TenantQueueFull));
        assert_eq!(quota.taken(), 67);
    }

    #[test]
    fn however_small_one_tenant_gets_one() {
        for limit in 1..4 {
            let mut quota = Quota::new(limit, true);
            assert_eq!(quota.take(A, 1), Ok(()), "limit {limit}");
        }
        assert_eq!(Quota::new(0, true).take(A, 1), Err(QuotaExceeded::Full));
    }

    #[test]
    fn amounts_at_the_end_of_the_numbers_do_not_wrap() {
        let mut quota = Quota::new(u64::MAX, true);
        assert_eq!(quota.take(A, u64::MAX), Err(QuotaExceeded::TenantQueueFull));
        quota.hold(A, u64::MAX);
        quota.hold(A, u64::MAX);
        assert_eq!(quota.take(B, 1), Err(QuotaExceeded::Full));
        quota.give_back(B, 5);
        assert_eq!(quota.held_by(A), u64::MAX);
    }
}
