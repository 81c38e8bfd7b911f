//! Decides which models are in memory: from facts and the time, without a clock or IO.
//!
//! ```text
//! cold --asked for--> loading --ready--> serving --idle too long, or its room is needed--> leaving --gone--> cold
//!                        `---error---> failed: refused with the reason, tried again after a while
//! ```
//!
//! - A model counts with all its bytes from the moment it begins to load until they are free again.
//! - A model with open requests is never unloaded. Where its room is needed it closes: newcomers wait in its line, and it
//!   leaves after its last answer.
//! - Those who wait are served in the order in which the first request for a model came, so none waits without end.
//! - Of models whose room is needed goes first what is idle, the longest idle first; pinned ones never go.
//! - A model that has work stays for three times as long as the next takes to load, so that at most a quarter of the time
//!   is spent on loading; but no request waits for that longer than [`Rules::load_wait`].
//! - One model loads at a time.

use std::collections::{BTreeMap, VecDeque};

use protocol::Nanos;

/// A model stays for this multiple of the time that the next takes to load.
const STAYS: u64 = 3;
/// One without requests for so long has no work.
const QUIET: Nanos = Nanos(1_000_000_000);
/// How long after an error a model is loaded again.
const RETRY: Nanos = Nanos(30_000_000_000);

/// A model by the order in which it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub usize);

/// One who waits for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitTicket(pub u64);

/// What holds for all models.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Bytes of all models together.
    pub memory: u64,
    /// How long a request waits at most because another model is to stay a while.
    pub load_wait: Nanos,
    /// How long a request waits at most for its model.
    pub load_timeout: Nanos,
    /// Requests that may wait in all.
    pub most_waiting: usize,
}

/// What is known of a model before it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Bytes that it takes: weights, KV cache, and what else comes.
    pub bytes: u64,
    /// How long it is likely to load.
    pub loads_in: Nanos,
    /// It is loaded at once and never unloaded.
    pub pinned: bool,
    /// How long it stays without requests; `None`: without end.
    pub keep_alive: Option<Nanos>,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Not in memory.
    Cold,
    /// On its way there.
    Loading {
        /// Since when.
        since: Nanos,
    },
    /// It answers.
    Serving {
        /// Since when.
        since: Nanos,
        /// Its room is needed: it takes no new request.
        closing: bool,
    },
    /// It answers no more, and its memory is not free yet.
    Leaving,
    /// It could not be loaded.
    Failed {
        /// When.
        at: Nanos,
        /// Why.
        why: String,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin to load: [`Residency::loaded`] or [`Residency::failed`] follows.
    Load(ModelId),
    /// Drop it: [`Residency::gone`] follows.
    Unload(ModelId),
    /// It may be asked: [`Residency::ended`] follows.
    Admit(WaitTicket),
    /// It is not answered.
    Refuse(WaitTicket, Refusal),
}

/// Why a request for a model is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It needs more than there could be.
    TooLarge {
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that could be free for it.
        room: u64,
    },
    /// It cannot be loaded.
    Failed(String),
    /// It was not loaded in time.
    TooLate,
    /// Too many wait.
    Full,
}

#[derive(Debug)]
struct Model {
    facts: Facts,
    place: Place,
    open: usize,
    /// When its last request ended, or it was loaded.
    idle_since: Nanos,
    waiting: VecDeque<(WaitTicket, Nanos)>,
    /// It is to be loaded although no request asks for it.
    starts: bool,
    /// It is to leave as soon as it is idle, although no room is needed.
    dismissed: bool,
}

impl Model {
    /// Bytes that it takes now.
    fn takes(&self) -> u64 {
        match self.place {
            Place::Cold | Place::Failed { .. } => 0,
            Place::Loading { .. } | Place::Serving { .. } | Place::Leaving => self.facts.bytes,
        }
    }

    /// It goes, or is to go as soon as it can.
    fn is_going(&self) -> bool {
        matches!(self.place, Place::Leaving | Place::Serving { closing: true, .. })
    }

    /// When the first of those who wait came.
    fn waits_since(&self) -> Option<Nanos> {
        self.waiting.front().map(|&(_, since)| since)
    }
}

/// All models and who waits for them.
#[derive(Debug)]
pub struct Residency {
    rules: Rules,
    models: BTreeMap<ModelId, Model>,
    next_ticket: u64,
}

impl Residency {
    /// Without a model.
    pub fn new(rules: Rules) -> Residency {
        Residency { rules, models: BTreeMap::new(), next_ticket: 0 }
    }

    /// Adds a model that is not in memory. A pinned one loads when [`Residency::decide`] is next asked.
    pub fn add(&mut self, facts: Facts) -> ModelId {
        let id = ModelId(self.models.len());
        let model = Model {
            facts,
            place: Place::Cold,
            open: 0,
            idle_since: Nanos(0),
            waiting: VecDeque::new(),
            starts: facts.pinned,
            dismissed: false,
        };
        self.models.insert(id, model);
        id
    }

    /// Where it is.
    pub fn place(&self, id: ModelId) -> &Place {
        &self.models[&id].place
    }

    /// What is known of it.
    pub fn facts(&self, id: ModelId) -> &Facts {
        &self.models[&id].facts
    }

    /// Requests that it answers, and those that wait for it.
    pub fn requests(&self, id: ModelId) -> (usize, usize) {
        let model = &self.models[&id];
        (model.open, model.waiting.len())
    }

    /// When it leaves if no request comes; `None`: not for that, or not there.
    pub fn leaves_at(&self, id: ModelId) -> Option<Nanos> {
        let model = &self.models[&id];
        let stays = model.facts.keep_alive.filter(|_| !model.facts.pinned && model.open == 0)?;
        matches!(model.place, Place::Serving { .. }).then(|| Nanos(model.idle_since.0.saturating_add(stays.0)))
    }

    /// A request asks for it. Its ticket is admitted or refused by a later [`Residency::decide`], unless too many wait.
    pub fn ask(&mut self, id: ModelId, now: Nanos) -> Result<WaitTicket, Refusal> {
        if self.models.values().map(|model| model.waiting.len()).sum::<usize>() >= self.rules.most_waiting {
            return Err(Refusal::Full);
        }
        let ticket = WaitTicket(self.next_ticket);
        self.next_ticket += 1;
        let model = self.models.get_mut(&id).expect("it was added");
        model.waiting.push_back((ticket, now));
        Ok(ticket)
    }

    /// Who waited has left; true if it was still waiting, else [`Residency::ended`] is due.
    pub fn withdraw(&mut self, ticket: WaitTicket) -> bool {
        let find = |model: &Model| model.waiting.iter().position(|&(other, _)| other == ticket);
        for model in self.models.values_mut() {
            if let Some(at) = find(model) {
                model.waiting.remove(at);
                return true;
            }
        }
        false
    }

    /// An admitted request is over.
    pub fn ended(&mut self, id: ModelId, now: Nanos) {
        let model = self.models.get_mut(&id).expect("it was added");
        model.open = model.open.checked_sub(1).expect("it was admitted");
        model.idle_since = now;
    }

    /// How long it stays without requests from now on; `Some(0)`: it leaves as soon as it is idle.
    pub fn keep_alive(&mut self, id: ModelId, stays: Option<Nanos>) {
        let model = self.models.get_mut(&id).expect("it was added");
        model.facts.keep_alive = stays;
    }

    /// What it is has changed on the disk. False: it is in memory, where the facts stay as they are.
    pub fn renew(&mut self, id: ModelId, facts: Facts) -> bool {
        let model = self.models.get_mut(&id).expect("it was added");
        let is_free = matches!(model.place, Place::Cold | Place::Failed { .. });
        if is_free {
            (model.facts, model.place) = (facts, Place::Cold);
        }
        is_free
    }

    /// It leaves as soon as it is idle, once, even a pinned one.
    pub fn dismiss(&mut self, id: ModelId) {
        let model = self.models.get_mut(&id).expect("it was added");
        model.dismissed = matches!(model.place, Place::Loading { .. } | Place::Serving { .. });
    }

    /// It answers. `bytes`: what it takes, now that it is known.
    pub fn loaded(&mut self, id: ModelId, bytes: u64, now: Nanos) {
        let model = self.models.get_mut(&id).expect("it was added");
        if let Place::Loading { since } = model.place {
            model.facts.loads_in = now.since(since);
        }
        (model.place, model.idle_since) = (Place::Serving { since: now, closing: false }, now);
        model.facts.bytes = bytes;
    }

    /// It could not be loaded. All who wait are refused.
    pub fn failed(&mut self, id: ModelId, why: String, now: Nanos) {
        self.models.get_mut(&id).expect("it was added").place = Place::Failed { at: now, why };
    }

    /// Its memory is free.
    pub fn gone(&mut self, id: ModelId) {
        let model = self.models.get_mut(&id).expect("it was added");
        (model.place, model.dismissed) = (Place::Cold, false);
    }

    /// What is to be done now. Ask again after each fact, and at [`Residency::next_moment`].
    pub fn decide(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        self.refuse(now, &mut actions);
        if self.next_wanted(now).is_none() {
            // Those that needed room have left.
            self.reopen();
        }
        self.admit(&mut actions);
        self.let_go(now, &mut actions);
        self.load_next(now, &mut actions);
        actions
    }

    /// When time alone may change something.
    pub fn next_moment(&self, now: Nanos) -> Option<Nanos> {
        let after = |from: Nanos, time: Nanos| Nanos(from.0.saturating_add(time.0));
        let loads_in = self.models.values().filter_map(|model| model.waits_since().map(|_| model.facts.loads_in));
        let stays = loads_in.max().unwrap_or_default();
        let moments = self.models.iter().flat_map(|(&id, model)| {
            let waits = model.waits_since();
            let stay_ends = match model.place {
                Place::Serving { since, .. } => Some(after(since, Nanos(stays.0.saturating_mul(STAYS)))),
                Place::Failed { at, .. } => Some(after(at, RETRY)),
                _ => None,
            };
            [
                Some(after(model.idle_since, QUIET)),
                self.leaves_at(id),
                stay_ends,
                waits.map(|since| after(since, self.rules.load_wait)),
                waits.map(|since| after(since, self.rules.load_timeout)),
            ]
        });
        moments.flatten().filter(|moment| *moment > now).min()
    }

    /// Bytes that could be free for a model that is not pinned.
    fn room_for(&self, id: ModelId) -> u64 {
        let others = self.models.iter().filter(|&(&other, model)| other != id && model.facts.pinned);
        self.rules.memory.saturating_sub(others.map(|(_, model)| model.facts.bytes).sum())
    }

    fn refuse(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let rooms: BTreeMap<ModelId, u64> = self.models.keys().map(|&id| (id, self.room_for(id))).collect();
        for (id, model) in &mut self.models {
            let too_large = || Refusal::TooLarge { needs: model.facts.bytes, room: rooms[id] };
            let all = match &model.place {
                Place::Failed { at, why } if now.since(*at) < RETRY => Some(Refusal::Failed(why.clone())),
                Place::Cold | Place::Failed { .. } if model.facts.bytes > rooms[id] => Some(too_large()),
                _ => None,
            };
            let is_late = |since: Nanos| now.since(since) >= self.rules.load_timeout;
            model.waiting.retain(|&(ticket, since)| {
                let refusal = all.clone().or_else(|| is_late(since).then_some(Refusal::TooLate));
                let stays = refusal.is_none();
                actions.extend(refusal.map(|refusal| Action::Refuse(ticket, refusal)));
                stays
            });
        }
    }

    fn admit(&mut self, actions: &mut Vec<Action>) {
        for model in self.models.values_mut() {
            if matches!(model.place, Place::Serving { closing: false, .. }) {
                model.open += model.waiting.len();
                actions.extend(model.waiting.drain(..).map(|(ticket, _)| Action::Admit(ticket)));
            }
        }
    }

    /// Those that are idle for too long, and those whose room is needed and whose last answer is out.
    fn let_go(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let expired = |id| self.leaves_at(id).is_some_and(|at| at <= now);
        let going = self.models.iter().filter(|&(&id, model)| {
            let is_serving = matches!(model.place, Place::Serving { .. }) && model.open == 0;
            is_serving && (model.is_going() || model.dismissed || expired(id))
        });
        let going: Vec<ModelId> = going.map(|(&id, _)| id).collect();
        for id in going {
            self.models.get_mut(&id).expect("it is there").place = Place::Leaving;
            actions.push(Action::Unload(id));
        }
    }

    /// The model that is to be loaded next: pinned ones come with the start, then the one that was asked for first.
    fn next_wanted(&self, now: Nanos) -> Option<ModelId> {
        let wanted = self.models.iter().filter(|(_, model)| match model.place {
            Place::Cold => model.starts && model.facts.bytes <= self.rules.memory || !model.waiting.is_empty(),
            Place::Failed { at, .. } => now.since(at) >= RETRY && !model.waiting.is_empty(),
            _ => false,
        });
        let first = wanted.min_by_key(|(_, model)| model.waits_since().unwrap_or_default());
        first.map(|(&id, _)| id)
    }

    /// No room is needed: those that were to leave for it take requests again.
    fn reopen(&mut self) {
        for model in self.models.values_mut() {
            if let Place::Serving { closing, .. } = &mut model.place {
                *closing = false;
            }
        }
    }

    /// Loads the model that was asked for first, or makes room for it.
    fn load_next(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        if self.models.values().any(|model| matches!(model.place, Place::Loading { .. })) {
            return;
        }
        let Some(id) = self.next_wanted(now) else { return };
        let model = &self.models[&id];
        let (needs, loads_in, since) = (model.facts.bytes, model.facts.loads_in, model.waits_since());
        let sum = |what: &dyn Fn(&Model) -> bool| -> u64 {
            self.models.values().filter(|model| what(model)).map(Model::takes).sum()
        };
        let free = self.rules.memory.saturating_sub(sum(&|_| true));
        if needs <= free {
            let model = self.models.get_mut(&id).expect("it is there");
            (model.place, model.starts) = (Place::Loading { since: now }, false);
            actions.push(Action::Load(id));
            return;
        }
        let will_be_free = free + sum(&Model::is_going);
        let is_overdue = since.is_some_and(|since| now.since(since) >= self.rules.load_wait);
        self.make_room(
            needs.saturating_sub(will_be_free),
            is_overdue,
            Nanos(loads_in.0.saturating_mul(STAYS)),
            now,
            actions,
        );
    }

    /// Closes models until `lacks` bytes will be free. `is_overdue`: one waits for too long to heed who is to stay.
    fn make_room(&mut self, mut lacks: u64, is_overdue: bool, stays: Nanos, now: Nanos, actions: &mut Vec<Action>) {
        let may_go = |model: &Model| match model.place {
            Place::Serving { since, closing: false } => {
                let has_work = model.open > 0 || now.since(model.idle_since) < QUIET;
                !model.facts.pinned && (!has_work || is_overdue || now.since(since) >= stays)
            }
            _ => false,
        };
        let mut going: Vec<ModelId> =
            self.models.iter().filter(|(_, model)| may_go(model)).map(|(&id, _)| id).collect();
        going.sort_by_key(|id| (self.models[id].open > 0, self.models[id].idle_since));
        for id in going {
            if lacks == 0 {
                return;
            }
            let model = self.models.get_mut(&id).expect("it is there");
            lacks = lacks.saturating_sub(model.facts.bytes);
            if model.open == 0 {
                model.place = Place::Leaving;
                actions.push(Action::Unload(id));
            } else if let Place::Serving { closing, .. } = &mut model.place {
                *closing = true;
            }
        }
    }
}
