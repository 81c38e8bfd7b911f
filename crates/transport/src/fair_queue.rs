//! Whose text is worked on next. Decisions only: no thread, no clock, no lock; [`crate::prepare_pool`] has those.
//!
//! ```text
//! tenant A  served 4.1 s   [ 7.9 MB, 0.9 s done ]  [ 7.9 MB, waiting ]
//! tenant B  served 0.2 s   [ 60 bytes, waiting ]      ◄── next: the tenant served least, and of its jobs the one served least
//! ```
//!
//! Work goes by windows: after each, a long job is charged what the window cost, and rests if another's turn has come.
//! So a short text waits for one window, whichever long texts are before it. A tenant that comes back from doing
//! nothing begins where the others are (start-time fair queueing: Goyal et al., 1996): idleness is not saved up.
//!
//! A job that rests keeps its memory and its thread. So few long ones are begun at a time; short ones never rest.

use std::collections::{BTreeMap, HashMap};

/// Jobs of more bytes than this are long: they rest, and few are begun at a time.
const LONG_BYTES: usize = 64 << 10;
/// Long jobs of one tenant, and of all, that are begun and not done.
const MOST_LONG_OF_ONE: usize = 2;
const MOST_LONG: usize = 8;

/// Who is charged: the digest of a key, or one for all without keys.
pub(crate) type Payer = Option<[u8; 32]>;
pub(crate) type JobId = u64;

/// Service, in nanoseconds of a worker.
type Service = u64;

/// The jobs there are, and what every tenant has been served.
pub(crate) struct FairQueue {
    workers: usize,
    /// Bytes that all jobs, and those of one tenant, may hold.
    most_bytes: usize,
    most_bytes_of_one: usize,
    bytes: usize,
    jobs: BTreeMap<JobId, Job>,
    tenants: HashMap<Payer, Tenant>,
    /// Jobs at work.
    working: usize,
    next_id: JobId,
    /// Where the tenants stood whose windows began last.
    now: Service,
}

struct Job {
    payer: Payer,
    long: bool,
    state: State,
    served: Service,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Working,
    /// Begun, and waiting for its next turn.
    Resting,
}

#[derive(Default)]
struct Tenant {
    served: Service,
    bytes: usize,
    jobs: usize,
    /// Long ones that are begun.
    long: usize,
}

/// There is no room for more bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl FairQueue {
    /// `workers`: jobs at work at once. `largest`: bytes of one body, for which there is always room.
    pub(crate) fn new(workers: usize, most_bytes: usize, largest: usize) -> FairQueue {
        let most_bytes = most_bytes.max(largest.saturating_mul(2));
        FairQueue {
            workers: workers.max(1),
            most_bytes,
            most_bytes_of_one: most_bytes / 2,
            bytes: 0,
            jobs: BTreeMap::new(),
            tenants: HashMap::new(),
            working: 0,
            next_id: 0,
            now: 0,
        }
    }

    /// Room for bytes that have arrived. A tenant gets half of all at most, so that there is some for the others.
    pub(crate) fn reserve(&mut self, payer: Payer, bytes: usize) -> Result<(), Full> {
        let tenant = self.tenants.entry(payer).or_default();
        if self.bytes + bytes > self.most_bytes || tenant.bytes + bytes > self.most_bytes_of_one {
            return Err(Full);
        }
        self.bytes += bytes;
        tenant.bytes += bytes;
        Ok(())
    }

    /// Gives back what [`reserve`](Self::reserve) took.
    pub(crate) fn release(&mut self, payer: Payer, bytes: usize) {
        self.bytes -= bytes;
        if let Some(tenant) = self.tenants.get_mut(&payer) {
            tenant.bytes -= bytes;
        }
    }

    /// A job that waits for its first turn.
    pub(crate) fn enter(&mut self, payer: Payer, bytes: usize) -> JobId {
        let tenant = self.tenants.entry(payer).or_default();
        if tenant.jobs == 0 {
            tenant.served = tenant.served.max(self.now);
        }
        tenant.jobs += 1;
        let id = self.next_id;
        self.next_id += 1;
        self.jobs.insert(id, Job { payer, long: bytes > LONG_BYTES, state: State::Waiting, served: 0 });
        id
    }

    /// The job whose turn it is, if a worker is free; it is at work from now on.
    pub(crate) fn next(&mut self) -> Option<JobId> {
        if self.working >= self.workers {
            return None;
        }
        let id = self.first_waiting()?;
        let job = self.jobs.get_mut(&id)?;
        let tenant = self.tenants.get_mut(&job.payer)?;
        if job.long && job.state == State::Waiting {
            tenant.long += 1;
        }
        job.state = State::Working;
        self.working += 1;
        self.now = self.now.max(tenant.served);
        Some(id)
    }

    /// Charges a job at work for a window. `true`: it is another's turn; the job rests.
    pub(crate) fn charge(&mut self, id: JobId, cost: Service) -> bool {
        self.pay(id, cost);
        let Some(job) = self.jobs.get(&id) else { return false };
        let rests = job.long && self.first_waiting().is_some_and(|other| self.place(other) < self.place(id));
        if rests && let Some(job) = self.jobs.get_mut(&id) {
            job.state = State::Resting;
            self.working -= 1;
        }
        rests
    }

    /// A job is done, or its client is gone. `cost`: of what was not charged yet.
    pub(crate) fn leave(&mut self, id: JobId, cost: Service) {
        self.pay(id, cost);
        let Some(job) = self.jobs.remove(&id) else { return };
        self.working -= usize::from(job.state == State::Working);
        if let Some(tenant) = self.tenants.get_mut(&job.payer) {
            tenant.jobs -= 1;
            if job.long && job.state != State::Waiting {
                tenant.long -= 1;
            }
        }
    }

    /// Jobs that are not done.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    fn pay(&mut self, id: JobId, cost: Service) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.served += cost;
        if let Some(tenant) = self.tenants.get_mut(&job.payer) {
            self.now = self.now.max(tenant.served);
            tenant.served += cost;
        }
    }

    /// What is served least comes first; of equals, what is short, and what came first.
    fn place(&self, id: JobId) -> (Service, Service, bool, JobId) {
        let job = &self.jobs[&id];
        (self.tenants[&job.payer].served, job.served, job.long, id)
    }

    fn first_waiting(&self) -> Option<JobId> {
        let long: usize = self.tenants.values().map(|tenant| tenant.long).sum();
        let may_go = |job: &Job| match job.state {
            State::Working => false,
            State::Resting => true,
            State::Waiting => !job.long || long < MOST_LONG && self.tenants[&job.payer].long < MOST_LONG_OF_ONE,
        };
        let ready = self.jobs.iter().filter(|(_, job)| may_go(job)).map(|(&id, _)| id);
        ready.min_by_key(|&id| self.place(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Payer = Some([1; 32]);
    const B: Payer = Some([2; 32]);
    const LONG: usize = 1 << 20;
    const SHORT: usize = 100;

    fn queue(workers: usize) -> FairQueue {
        FairQueue::new(workers, 64 << 20, 8 << 20)
    }

    #[test]
    fn a_short_text_waits_for_one_window_of_long_ones() {
        for payer in [A, B] {
            let mut queue = queue(1);
            let long: Vec<JobId> = (0..4).map(|_| queue.enter(A, LONG)).collect();
            assert_eq!(queue.next(), Some(long[0]));
            assert!(!queue.charge(long[0], 0));
            let short = queue.enter(payer, SHORT);
            assert_eq!(queue.next(), None, "the worker is not free");
            assert!(queue.charge(long[0], 10), "after its window it rests");
            assert_eq!(queue.next(), Some(short));
            queue.leave(short, 1);
            assert!(queue.next().is_some());
        }
    }

    #[test]
    fn tenants_share_by_service_whatever_the_number_of_their_jobs() {
        let mut queue = queue(1);
        for _ in 0..20 {
            queue.enter(A, LONG);
        }
        let one = queue.enter(B, LONG);
        let mut served = [0u64; 2];
        let mut at_work = queue.next().unwrap();
        for _ in 0..1000 {
            served[usize::from(at_work == one)] += 10;
            if queue.charge(at_work, 10) {
                at_work = queue.next().unwrap();
            }
        }
        assert!(served[0].abs_diff(served[1]) <= 20, "{served:?}");
    }

    #[test]
    fn idleness_is_not_saved_up() {
        let mut queue = queue(1);
        let long = queue.enter(A, LONG);
        assert_eq!(queue.next(), Some(long));
        for _ in 0..100 {
            queue.charge(long, 10);
        }
        // B has been away all that time: it gets its share from now on, not what it did not take.
        let (mut of_b, mut served, mut at_work) = (queue.enter(B, LONG), [0u64; 2], long);
        for _ in 0..100 {
            served[usize::from(at_work == of_b)] += 10;
            if queue.charge(at_work, 10) {
                at_work = queue.next().unwrap();
            }
        }
        assert!(served[0] >= 400, "{served:?}");
        // Coming back as a new tenant does not help either.
        queue.leave(of_b, 0);
        of_b = queue.enter(B, LONG);
        assert!(queue.tenants[&B].served + 20 >= queue.tenants[&A].served && queue.jobs.contains_key(&of_b));
    }

    #[test]
    fn few_long_jobs_are_begun_and_they_are_ended_first() {
        let mut queue = queue(1);
        for _ in 0..10 {
            queue.enter(A, LONG);
        }
        let mut begun = std::collections::BTreeSet::new();
        let mut at_work = queue.next().unwrap();
        for _ in 0..100 {
            begun.insert(at_work);
            if queue.charge(at_work, 10) {
                at_work = queue.next().unwrap();
            }
        }
        assert_eq!(begun.len(), MOST_LONG_OF_ONE);
        queue.leave(at_work, 0);
        while let Some(id) = queue.next() {
            begun.insert(id);
            queue.leave(id, 10);
        }
        assert_eq!((begun.len(), queue.len()), (10, 0));
        assert!(queue.tenants.values().all(|tenant| tenant.jobs == 0 && tenant.long == 0));
    }

    #[test]
    fn a_tenant_cannot_take_all_the_room() {
        let mut queue = FairQueue::new(1, 10, 4);
        assert_eq!(queue.reserve(A, 5), Ok(()));
        assert_eq!(queue.reserve(A, 1), Err(Full));
        assert_eq!(queue.reserve(B, 5), Ok(()));
        assert_eq!(queue.reserve(B, 1), Err(Full));
        queue.release(A, 5);
        assert_eq!(queue.reserve(A, 5), Ok(()));
        // One body always fits.
        assert_eq!(FairQueue::new(1, 10, 100).reserve(A, 100), Ok(()));
    }

    #[test]
    fn as_many_work_as_there_are_workers() {
        let mut queue = queue(2);
        let ids: Vec<JobId> = (0..3).map(|_| queue.enter(A, SHORT)).collect();
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some(ids[0]), Some(ids[1]), None));
        queue.leave(ids[0], 1);
        assert_eq!(queue.next(), Some(ids[2]));
        // A job that is given up while it waits is gone.
        let gone = queue.enter(B, SHORT);
        queue.leave(gone, 0);
        queue.leave(ids[1], 0);
        queue.leave(ids[2], 0);
        assert_eq!((queue.next(), queue.len()), (None, 0));
    }
}
