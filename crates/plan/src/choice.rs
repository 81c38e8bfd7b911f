//! Targets in, machines out: which machines, how many of them and in which precision serve these users in time.
//!
//! ```text
//! machine x number in an instance x precision --> largest batch that meets the targets --> instances --> price | cards
//! ```
//! Of those that meet the targets only the Pareto front is kept: a choice stays if no other is at least as good in
//! price, TTFT, TPOT and precision, and better in one of them.

use kernels::WeightClass;
use roofline::Machine;

use crate::fleet::{FleetSize, Users};
use crate::question::{Here, PriceList, Question, WhichMachine};
use crate::units::{duration, thousands};
use crate::{Ask, Deployment};

/// Machines in one instance.
const COUNTS: [usize; 4] = [1, 2, 4, 8];
/// Rows that are listed.
const ROWS: usize = 12;

/// Machines that meet the targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// The Pareto front, the cheapest first, or where there are no prices the fewest machines.
    pub rows: Vec<FleetChoice>,
    /// Rows of the front that are not listed.
    pub left_off: usize,
    /// Whether the rows are ordered by price.
    pub is_priced: bool,
    /// Choices tried, those that hold a request beside the weights, and those of them that meet the targets.
    pub tried: usize,
    /// See [`Choices::tried`].
    pub fit: usize,
    /// See [`Choices::tried`].
    pub meet: usize,
    /// If none meets them: which are missed, and by how much.
    pub unmet: Vec<Unmet>,
}

/// A choice.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetChoice {
    /// The machine's name.
    pub machine: String,
    /// Machines in one instance.
    pub count: usize,
    /// Precision of the weights.
    pub weights: WeightClass,
    /// Batch, its cap, TTFT, TPOT and instances.
    pub fleet: FleetSize,
    /// Price of an hour of all machines; `None` if they have none.
    pub price: Option<f64>,
    /// Most watts of all machines; `None` if unknown.
    pub watts: Option<f64>,
}

/// A target that no choice meets, or none together with the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmet {
    /// `ttft` or `tpot`.
    pub target: &'static str,
    /// The target in seconds.
    pub wanted: f64,
    /// The best of all choices, one request at a time.
    pub best: f64,
    /// The choice that reaches it.
    pub on: String,
}

impl FleetChoice {
    fn of(deployment: &Deployment, name: String, fleet: FleetSize) -> FleetChoice {
        let machine = &deployment.machine;
        let all = |of_one: Option<f64>| of_one.map(|value| value * fleet.machines as f64);
        let (price, watts) = (all(machine.price_per_hour), all(machine.watts));
        FleetChoice { machine: name, count: machine.count, weights: deployment.demands.weights, fleet, price, watts }
    }

    /// Machines of all instances.
    pub fn cards(&self) -> u64 {
        self.fleet.machines.saturating_mul(self.count as u64)
    }

    fn words(&self) -> String {
        let count = if self.count == 1 { String::new() } else { format!("{} x ", self.count) };
        format!("{count}{} in {}", self.machine, self.weights.name())
    }

    /// What is to be small: price or machines, TTFT, TPOT, and what narrower weights may lose.
    fn figures(&self) -> [f64; 4] {
        let lost = match self.weights {
            WeightClass::Bf16 => 0.0,
            WeightClass::Int8 => 1.0,
            WeightClass::Int4 => 2.0,
        };
        [self.price.unwrap_or(self.cards() as f64), self.fleet.ttft, self.fleet.tpot, lost]
    }

    fn beats(&self, other: &FleetChoice) -> bool {
        let (own, other) = (self.figures(), other.figures());
        own != other && own.iter().zip(&other).all(|(own, other)| own <= other)
    }
}

impl Question {
    /// `None` without users or without a target.
    pub(crate) fn choices(&self, here: &Here) -> Option<Choices> {
        let users = self.ask.users.filter(|users| users.ttft.or(users.tpot).is_some())?;
        let ask = Ask { batch: 1, ..self.ask };
        let (mut tried, mut fitting) = (0, Vec::new());
        for (machine, name) in self.machines_to_try() {
            let is_own = machine == self.machine;
            for machines in COUNTS.into_iter().filter(|&count| self.machines == 1 || count == 1) {
                for weights in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
                    if self.weights.is_some_and(|only| only != weights) {
                        continue;
                    }
                    let question = Question {
                        machine: machine.clone(),
                        machines: machines * self.machines,
                        weights: Some(weights),
                        watts: self.watts.filter(|_| is_own),
                        acceptance: None,
                        drafter: None,
                        ..self.clone()
                    };
                    let Ok(deployment) = question.deploy(here) else { continue };
                    tried += 1;
                    let fleet = deployment.fleet(&ask, &users);
                    fitting.extend(fleet.map(|fleet| FleetChoice::of(&deployment, name.clone(), fleet)));
                }
            }
        }
        Some(Choices::of(fitting, tried, !matches!(self.prices, PriceList::None), &users))
    }

    /// With prices those that have one, and else all that are known.
    fn machines_to_try(&self) -> Vec<(WhichMachine, String)> {
        let named = |name: String| (WhichMachine::Named(name.clone()), name);
        let own = match &self.machine {
            WhichMachine::Named(name) => named(name.clone()),
            given @ WhichMachine::Given { .. } => (given.clone(), "given".to_string()),
        };
        match &self.prices {
            PriceList::Own(_) => vec![own],
            PriceList::Listed(prices) => prices.iter().map(|(name, _)| named(name.clone())).collect(),
            PriceList::None => {
                let known = Machine::known().filter(|known| !known.name.eq_ignore_ascii_case(&own.1));
                let known: Vec<_> = known.map(|known| named(known.name)).collect();
                [vec![own], known].concat()
            }
        }
    }
}

impl Choices {
    fn of(fitting: Vec<FleetChoice>, tried: usize, is_priced: bool, users: &Users) -> Choices {
        let good: Vec<&FleetChoice> = fitting.iter().filter(|choice| !choice.fleet.misses_target).collect();
        let front = good.iter().filter(|choice| !good.iter().any(|other| other.beats(choice)));
        let mut rows: Vec<FleetChoice> = front.map(|&choice| choice.clone()).collect();
        rows.sort_by(|a, b| a.figures().partial_cmp(&b.figures()).expect("times and prices are numbers"));
        let left_off = rows.len().saturating_sub(ROWS);
        rows.truncate(ROWS);
        let unmet = if good.is_empty() { unmet(&fitting, users) } else { Vec::new() };
        Choices { rows, left_off, is_priced, tried, fit: fitting.len(), meet: good.len(), unmet }
    }

    /// The result in a sentence.
    pub fn words(&self) -> String {
        let tried = format!("of {} choices of machine, number and precision", thousands(self.tried as u64));
        let Choices { rows, unmet, .. } = self;
        if self.fit == 0 {
            return format!("{tried} none has memory for the weights and one request");
        }
        let missed = |Unmet { target, wanted, best, on }: &Unmet| {
            format!(
                "{} of {}: {} on {on}, {:.2} times that",
                target.to_uppercase(),
                duration(*wanted),
                duration(*best),
                best / wanted
            )
        };
        match unmet.as_slice() {
            [] => {
                let order = if self.is_priced { "the cheapest first" } else { "the fewest machines first" };
                let listed = rows.len() + self.left_off;
                format!("{tried} {} meet the targets; beaten by no other: {listed}, {order}", self.meet)
            }
            [a, b] if a.on == b.on => {
                format!("{tried} none meets both targets; the nearest has for a {}, and for a {}", missed(a), missed(b))
            }
            all => {
                let all: Vec<String> = all.iter().map(missed).collect();
                format!("{tried} none meets the targets; the best for a {}", all.join(", and for a "))
            }
        }
    }
}

/// Which targets all of `fitting` miss. If each is met by some, then both on the choice that is nearest.
fn unmet(fitting: &[FleetChoice], users: &Users) -> Vec<Unmet> {
    let targets = [("ttft", users.ttft), ("tpot", users.tpot)];
    let targets = targets.into_iter().filter_map(|(name, target)| Some((name, target?)));
    let reached =
        |choice: &FleetChoice, target: &str| if target == "ttft" { choice.fleet.ttft } else { choice.fleet.tpot };
    let of = |(target, wanted): (&'static str, f64), choice: &FleetChoice| {
        let (best, on) = (reached(choice, target), choice.words());
        Unmet { target, wanted, best, on }
    };
    let best = targets.clone().filter_map(|(name, wanted)| {
        let best = fitting.iter().min_by(|a, b| reached(a, name).total_cmp(&reached(b, name)))?;
        Some(of((name, wanted), best)).filter(|unmet| unmet.best > wanted)
    });
    let missed: Vec<Unmet> = best.collect();
    if !missed.is_empty() {
        return missed;
    }
    let excess =
        |choice: &FleetChoice| targets.clone().map(|(name, wanted)| reached(choice, name) / wanted).fold(0.0, f64::max);
    let nearest = fitting.iter().min_by(|a, b| excess(a).total_cmp(&excess(b)));
    nearest.map_or_else(Vec::new, |nearest| targets.clone().map(|target| of(target, nearest)).collect())
}
