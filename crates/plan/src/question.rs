//! Parameters of a plan, from flags or a URL, and their validation, in one place.
//!
//! ```text
//! model=7b & machine=h100 | flops=312T & bandwidth=2T & memory=80G & machines=1 & weights=bf16 & kv=bf16 & expert_memory=8G
//! prompt=1024 & cached=0.8 & thinking=2000 & response=256 & batch=1 & acceptance=0.8 & draft=0.5b
//! users=1000 & rate=2/min & ttft=500 & tpot=50 & price=2.00 | price=a100=2.00,h100=3.50 & watts=400 & utilization=0.7
//! ```

use kernels::limits::{Doubt, Limits};
use kernels::{KvDtype, WeightClass};
use roofline::{Basis, Demands, Machine, ModelShape, ROWS_HERE};
use scheduler::CostModel;
use serde_json::{Value, json};

use self::ParameterKind::{Share, Text, Whole, Word};
use crate::cost::cost;
use crate::units::{quantity, requests_per_second};
use crate::{Ask, Deployment, NamedModel, Plan, SpeculationModel, USE, Users};

/// Name of the loaded model, and of this machine.
pub const HERE: &str = "here";
/// The simulator's older name for it.
const THIS: &str = "this";

/// Whether a machine's name means this machine.
pub fn is_here(machine: &str) -> bool {
    [HERE, THIS].contains(&machine)
}

/// Maximum prompt, answer, batch, number of machines and of users; more is a typing error.
const MOST: usize = 10_000_000;

/// A plan's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// A known model, a number of parameters, or `here`.
    pub model: String,
    /// The machine.
    pub machine: WhichMachine,
    /// Number of machines combined into one.
    pub machines: usize,
    /// Bytes per second between them; `None`: nothing is lost there.
    pub link: Option<f64>,
    /// Most watts of one machine; `None`: what its vendor says.
    pub watts: Option<f64>,
    /// Prices of machines.
    pub prices: PriceList,
    /// Precision of the weights; `None`: that of the loaded model, or bf16.
    pub weights: Option<WeightClass>,
    /// Precision of keys and values; `None`: that of the loaded model, or bf16.
    pub kv_dtype: Option<KvDtype>,
    /// Bytes for the experts of a mixture; `None`: for all of them.
    pub expert_memory: Option<f64>,
    /// Rows per prefill pass; `None`: the machine's.
    pub rows: Option<usize>,
    /// Lengths, batch, users.
    pub ask: Ask,
    /// Acceptance probability of a draft; `None`: no speculation.
    pub acceptance: Option<f64>,
    /// The draft model, in the same precisions; `None`: drafts cost nothing.
    pub drafter: Option<NamedModel>,
}

/// What an hour of a machine costs, in any currency. No price is built in.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PriceList {
    /// Unknown.
    #[default]
    None,
    /// Of the machine that is asked for.
    Own(f64),
    /// Of machines by name, which are all that may be chosen.
    Listed(Vec<(String, f64)>),
}

impl PriceList {
    /// Parses `2.00`, or `a100=2.00,h100=3.50`.
    pub fn parse(text: &str) -> Result<PriceList, Problem> {
        let price = |text: &str| match text.parse::<f64>() {
            Ok(price) if (1e-6..=1e6).contains(&price) => Ok(price),
            _ => wrong("price", "not a price of an hour above 0 and up to 1000000: 2.00, or a100=2.00,h100=3.50"),
        };
        if !text.contains('=') {
            return price(text).map(PriceList::Own);
        }
        let of_one = |pair: &str| {
            let (name, amount) = pair.split_once('=').unwrap_or((pair, ""));
            if Machine::named(name).is_none() && !is_here(name) {
                return wrong("price", format!("no machine {} is known", shown(name)));
            }
            Ok((name.to_ascii_lowercase(), price(amount)?))
        };
        let prices = text.split(',').map(of_one).collect::<Result<Vec<_>, _>>()?;
        match prices.iter().enumerate().find(|(at, (name, _))| prices[..*at].iter().any(|(other, _)| other == name)) {
            Some((_, (name, _))) => wrong("price", format!("{name} is there twice")),
            None => Ok(PriceList::Listed(prices)),
        }
    }

    fn of(&self, machine: &WhichMachine) -> Option<f64> {
        match (self, machine) {
            (PriceList::Own(price), _) => Some(*price),
            (PriceList::Listed(prices), WhichMachine::Named(name)) => {
                prices.iter().find(|(listed, _)| listed.eq_ignore_ascii_case(name)).map(|&(_, price)| price)
            }
            _ => None,
        }
    }
}

/// A machine by name or by figures.
#[derive(Clone, Debug, PartialEq)]
pub enum WhichMachine {
    /// A known one, or `here`.
    Named(String),
    /// Operations and bytes per second, and bytes of memory.
    Given {
        /// Operations per second.
        flops: f64,
        /// Bytes per second.
        bandwidth: f64,
        /// Bytes.
        memory: Option<f64>,
    },
}

/// The state of this machine and the model on it.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Its limits, if measured.
    pub limits: Option<Limits>,
    /// Bytes of its memory.
    pub memory: Option<f64>,
    /// The model.
    pub model: Option<Loaded>,
}

/// A model that is loaded, or stored on this machine.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Display name.
    pub name: String,
    /// Its costs, in its format in memory.
    pub demands: Demands,
    /// Bytes of its weights that no pass reads.
    pub unread_bytes: u64,
    /// Its step costs here, if measured.
    pub cost: Option<CostModel>,
    /// Why they are uncertain.
    pub doubt: Option<Doubt>,
    /// Tokens that its cache holds, if it is running.
    pub kv_tokens: Option<u64>,
    /// Rows per prefill pass.
    pub rows: usize,
}

impl Here {
    /// The same machine with a model known only by its shape, in the precisions of the question.
    pub fn with_model(&self, name: &str, shape: ModelShape, question: &Question) -> Here {
        let weights = question.weights.unwrap_or(WeightClass::Bf16);
        let demands = shape.demands(weights, question.kv_dtype.unwrap_or_default());
        let unread_bytes = shape.unread_bytes(weights);
        let name = name.to_string();
        let model = Loaded { name, demands, unread_bytes, cost: None, doubt: None, kv_tokens: None, rows: ROWS_HERE };
        Here { limits: self.limits, memory: self.memory, model: Some(model) }
    }
}

/// An invalid parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Problem {
    /// The parameter at fault.
    pub field: &'static str,
    /// What is wrong with it and what is valid.
    pub problem: String,
}

fn wrong<T>(field: &'static str, problem: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { field, problem: problem.into() })
}

/// A URL parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Type of its value.
    pub kind: ParameterKind,
}

/// Type of a parameter's value.
#[derive(Clone, Copy, Debug)]
pub enum ParameterKind {
    /// A whole number from 1.
    Whole,
    /// A number from 0 to 1.
    Share,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A name, or a number with its unit.
    Text,
}

const fn parameter(name: &'static str, kind: ParameterKind, about: &'static str) -> Parameter {
    Parameter { name, about, kind }
}

/// The URL parameters. The last is the response format, which the caller reads.
pub const PARAMETERS: [Parameter; 26] = [
    parameter("model", Text, "a model by name, a number of parameters such as 7b or 30b-a3b, or here: the loaded one"),
    parameter("machine", Text, "a machine by name, or here"),
    parameter("machines", Whole, "number of these machines, combined into one"),
    parameter("link", Text, "bytes per second between them, such as 450G; else nothing is lost there"),
    parameter("flops", Text, "operations per second instead of a machine's name, such as 312T"),
    parameter("bandwidth", Text, "bytes per second, with flops, such as 2T"),
    parameter("memory", Text, "bytes of memory, with flops and bandwidth, such as 80G"),
    parameter("weights", Word(&WEIGHTS), "precision of the weights"),
    parameter("kv", Word(&KV_DTYPES), "precision of keys and values"),
    parameter("expert_memory", Text, "bytes of memory for experts, the others on disk, such as 8G"),
    parameter("rows", Whole, "rows per prefill pass"),
    parameter("prompt", Whole, "tokens of a prompt"),
    parameter("cached", Share, "share of the prompt that is in the prefix cache"),
    parameter("thinking", Whole, "reasoning tokens before the response"),
    parameter("response", Whole, "tokens of a response"),
    parameter("batch", Whole, "number of concurrent requests"),
    parameter("users", Whole, "number of users who share the machines"),
    parameter("rate", Text, "requests of each user per time, such as 2/min"),
    parameter("ttft", Text, "TTFT target in milliseconds: with users, which machines meet it"),
    parameter("tpot", Text, "TPOT target in milliseconds: with users, which machines meet it"),
    parameter("price", Text, "price of an hour of the machine such as 2.00, or of several: a100=2.00,h100=3.50"),
    parameter("watts", Text, "most watts of a machine, such as 400"),
    parameter("utilization", Share, "share of the time in which machines work, 0.7 if not stated"),
    parameter("acceptance", Share, "acceptance probability of a draft token"),
    parameter("draft", Text, "draft model, by name or number of parameters"),
    parameter("format", Word(&["json", "svg"]), "JSON, or charts"),
];

/// Precisions of weights; the first two are aliases.
const WEIGHTS: [&str; 4] = ["bf16", "fp16", "int8", "int4"];
/// Precisions of keys and values; the first two are aliases.
const KV_DTYPES: [&str; 3] = ["bf16", "fp16", "int8"];

impl Question {
    /// Parses decoded URL parameters. `format` is skipped: the caller reads it. Each may occur once.
    pub fn from_parameters<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Question, Problem> {
        let mut given: Vec<(&'static str, &str)> = Vec::new();
        for (name, value) in parameters {
            let Some(known) = PARAMETERS.iter().map(|parameter| parameter.name).find(|&known| known == name) else {
                // An untrusted name may be a megabyte long.
                let name: String = name.chars().take(40).collect();
                let known = PARAMETERS.map(|parameter| parameter.name).join(", ");
                return wrong("query", format!("no parameter {name:?}; there are {known}"));
            };
            if given.iter().any(|(name, _)| *name == known) {
                return wrong(known, "given twice");
            }
            given.push((known, value));
        }
        let get = |name: &str| given.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
        let number = |field: &'static str, default: usize| get(field).map_or(Ok(default), |text| whole(field, text));
        let amount = |field: &'static str, example: &str| match get(field) {
            None => Ok(None),
            Some(text) => match quantity(text) {
                Some(value) => Ok(Some(value)),
                None => wrong(field, format!("not a number above 0, such as {example}")),
            },
        };
        let machine = match (amount("flops", "312T")?, amount("bandwidth", "2T")?, amount("memory", "80G")?) {
            (Some(flops), Some(bandwidth), memory) => match get("machine") {
                None => WhichMachine::Given { flops, bandwidth, memory },
                Some(_) => return wrong("machine", "give either a machine's name, or flops and bandwidth, not both"),
            },
            (None, None, None) => WhichMachine::Named(get("machine").unwrap_or(HERE).to_string()),
            (None, None, Some(_)) => return wrong("memory", "goes with flops and bandwidth: give these too"),
            (None, ..) => return wrong("flops", "missing: bandwidth requires it"),
            (_, None, _) => return wrong("bandwidth", "missing: flops requires it"),
        };
        let users = match (get("users"), get("rate")) {
            (None, None) => None,
            (None, Some(_)) => return wrong("rate", "goes with users: give these too"),
            (Some(_), None) => return wrong("rate", "missing: users requires it, as requests of each such as 2/min"),
            (Some(users), Some(rate)) => Some(Users {
                users: whole("users", users)? as f64,
                rate: match requests_per_second(rate) {
                    Some(rate) => rate,
                    None => return wrong("rate", "not requests of each user per time, such as 2/min, 0.1/s, 30/h"),
                },
                ttft: amount("ttft", "500, in milliseconds")?.map(|ms| ms / 1e3),
                tpot: amount("tpot", "50, in milliseconds")?.map(|ms| ms / 1e3),
            }),
        };
        if let Some(target) = ["ttft", "tpot"].into_iter().find(|&target| users.is_none() && get(target).is_some()) {
            return wrong(target, "goes with users: give these too");
        }
        let drafter = get("draft").map(|name| match NamedModel::find(name) {
            Some(model) => Ok(model),
            None => wrong("draft", unknown_model(name, false)),
        });
        Ok(Question {
            model: get("model").unwrap_or(HERE).to_string(),
            machine,
            machines: number("machines", 1)?,
            link: amount("link", "450G")?,
            watts: amount("watts", "400")?,
            prices: get("price").map_or(Ok(PriceList::None), PriceList::parse)?,
            weights: get("weights").map(weight_class).transpose()?,
            kv_dtype: get("kv").map(kv_dtype).transpose()?,
            expert_memory: amount("expert_memory", "8G")?,
            rows: get("rows").map(|text| whole("rows", text)).transpose()?,
            ask: Ask {
                prompt: number("prompt", 1024)?,
                response: number("response", 256)?,
                thinking: get("thinking").map_or(Ok(0), |text| whole("thinking", text))?,
                cached: get("cached").map_or(Ok(0.0), |text| share("cached", text))?,
                batch: number("batch", 1)?,
                utilization: get("utilization").map_or(Ok(USE), |text| share("utilization", text))?,
                users,
            },
            acceptance: get("acceptance").map(|text| share("acceptance", text)).transpose()?,
            drafter: drafter.transpose()?,
        })
    }

    /// The whole answer: the plan, and with users and targets the machines that meet them.
    pub fn plan(&self, here: &Here) -> Result<Plan, Problem> {
        let plan = self.deploy(here)?.plan(&self.ask);
        Ok(Plan { choices: self.choices(here), ..plan })
    }

    /// The deployment of the model on the machine, after looking up both.
    pub fn deploy(&self, here: &Here) -> Result<Deployment, Problem> {
        for (field, value) in [
            ("prompt", self.ask.prompt),
            ("response", self.ask.response),
            ("thinking", self.ask.thinking.max(1)),
            ("batch", self.ask.batch),
            ("machines", self.machines),
            ("rows", self.rows.unwrap_or(1)),
        ] {
            if !(1..=MOST).contains(&value) {
                return wrong(field, format!("must be from 1 to {MOST}"));
            }
        }
        self.check_amounts()?;
        if self.acceptance.is_none() && self.drafter.is_some() {
            return wrong("draft", "goes with acceptance: give that too");
        }
        let mut deployment = self.on_machine(here)?;
        if self.expert_memory.is_some() && deployment.demands.shape.experts.is_none() {
            return wrong("expert_memory", format!("{} has no experts: leave it out", deployment.name));
        }
        deployment.expert_memory = self.expert_memory;
        if let Some(rows) = self.rows {
            deployment.machine.rows = rows;
        }
        deployment.speculation = self.acceptance.map(|acceptance| {
            let Deployment { demands, machine, .. } = &deployment;
            // The drafter's steps were not measured.
            let basis = if machine.basis == Basis::Steps { Basis::Limits } else { machine.basis };
            let on = |model| {
                let machine = Machine { basis, ..machine.clone() };
                Box::new(Deployment::new(model, demands.weights, demands.kv_dtype, machine))
            };
            SpeculationModel { acceptance, drafter: self.drafter.as_ref().map(on) }
        });
        let limit = deployment.demands.shape.context_limit;
        let needed = self.ask.prompt + self.ask.written();
        if needed > limit && deployment.assumed.is_none() {
            let problem = format!("{needed} tokens with the response; {} reads at most {limit}", deployment.name);
            let is_thought = self.ask.prompt + self.ask.response <= limit;
            return wrong(if is_thought { "thinking" } else { "prompt" }, problem);
        }
        Ok(deployment)
    }

    /// Amounts that no flag and no URL is stopped from stating.
    fn check_amounts(&self) -> Result<(), Problem> {
        let Question { machine, ask, .. } = self;
        let users = ask.users;
        let (flops, bandwidth, memory) = match *machine {
            WhichMachine::Given { flops, bandwidth, memory } => (Some(flops), Some(bandwidth), memory),
            WhichMachine::Named(_) => (None, None, None),
        };
        const MS: &str = "must be from 0.001 to 1e9 milliseconds";
        for (field, value, [least, most], problem) in [
            ("flops", flops, [1e3, 1e21], "must be from 1k to 1e21"),
            ("bandwidth", bandwidth, [1e3, 1e18], "must be from 1k to 1e18"),
            ("memory", memory, [1e3, 1e18], "must be from 1k to 1e18"),
            ("link", self.link, [1e6, 1e18], "must be from 1M to 1e18 bytes per second"),
            ("watts", self.watts, [1e-3, 1e6], "must be from 0.001 to 1000000"),
            ("expert_memory", self.expert_memory, [1.0, 1e18], "must be from 1 to 1e18"),
            ("rate", users.map(|users| users.rate), [1e-9, 1e6], "must be from 1e-9 to 1000000 requests per second"),
            ("ttft", users.and_then(|users| users.ttft), [1e-6, 1e6], MS),
            ("tpot", users.and_then(|users| users.tpot), [1e-6, 1e6], MS),
            ("cached", Some(ask.cached), [0.0, 1.0 - 1e-9], "must be from 0 to below 1: the last token is computed"),
            ("utilization", Some(ask.utilization), [0.01, 1.0], "must be from 0.01 to 1"),
            ("acceptance", self.acceptance, [1e-9, 1.0 - 1e-9], "not a probability above 0 and below 1, such as 0.8"),
        ] {
            // Written so that what is not a number is wrong.
            if value.is_some_and(|value| !(least..=most).contains(&value)) {
                return wrong(field, problem);
            }
        }
        Ok(())
    }

    fn on_machine(&self, here: &Here) -> Result<Deployment, Problem> {
        let loaded = here.model.as_ref().filter(|_| self.model == HERE);
        let model = match loaded {
            Some(loaded) => NamedModel::new(&loaded.name, loaded.demands.shape.clone()),
            None => match NamedModel::find(&self.model) {
                Some(model) => model,
                None => return wrong("model", unknown_model(&self.model, here.model.is_some())),
            },
        };
        let weights = self.weights.or(loaded.map(|loaded| loaded.demands.weights)).unwrap_or(WeightClass::Bf16);
        let kv_dtype = self.kv_dtype.or(loaded.map(|loaded| loaded.demands.kv_dtype)).unwrap_or_default();
        // In its actual format, not a hypothetical one.
        let as_loaded =
            loaded.filter(|loaded| (weights, kv_dtype) == (loaded.demands.weights, loaded.demands.kv_dtype));
        let found = self.found_machine(here, weights)?;
        let (watts, price_per_hour) = (self.watts.or(found.watts), self.prices.of(&self.machine));
        let machine = Machine { watts, price_per_hour, link: self.link, ..found }.times(self.machines);
        let Some(loaded) = as_loaded else { return Ok(Deployment::new(&model, weights, kv_dtype, machine)) };
        let runs_here = machine.basis == Basis::Limits && self.machines == 1;
        let (cost, machine) = match loaded.cost.as_ref().filter(|_| runs_here) {
            Some(cost) => {
                let doubt = loaded.doubt.or(machine.doubt);
                (cost.clone(), Machine { basis: Basis::Steps, rows: loaded.rows, doubt, ..machine })
            }
            None => (cost(&machine, &loaded.demands), machine),
        };
        Ok(Deployment {
            name: model.name,
            assumed: None,
            demands: loaded.demands.clone(),
            unread_bytes: loaded.unread_bytes,
            kv_tokens: loaded.kv_tokens.filter(|_| runs_here),
            machine,
            cost,
            speculation: None,
            expert_memory: None,
        })
    }

    fn found_machine(&self, here: &Here, weights: WeightClass) -> Result<Machine, Problem> {
        match &self.machine {
            WhichMachine::Given { flops, bandwidth, memory } => Ok(Machine::given(*flops, *bandwidth, *memory)),
            WhichMachine::Named(name) if is_here(name) => match &here.limits {
                Some(limits) => Ok(Machine::here(limits, weights, here.memory)),
                None => wrong(
                    "machine",
                    "limits of this machine were not measured; name a known machine, or give flops and bandwidth",
                ),
            },
            WhichMachine::Named(name) => match Machine::named(name) {
                Some(machine) => Ok(machine),
                None => {
                    let names: Vec<String> = Machine::known().map(|machine| machine.name).collect();
                    wrong(
                        "machine",
                        format!(
                            "{} is not known; known are {HERE}, {}; or give flops and bandwidth",
                            shown(name),
                            names.join(", ")
                        ),
                    )
                }
            },
        }
    }
}

/// An untrusted name, shortened for a message.
fn shown(name: &str) -> String {
    let short: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
    format!("{short:?}")
}

fn unknown_model(name: &str, is_here: bool) -> String {
    let names: Vec<&str> = ModelShape::known().map(|(name, _)| name).collect();
    let here = if is_here { "here, " } else { "" };
    format!(
        "{} is not known; known are {here}{}, or a number of parameters such as 7b, 30b-a3b",
        shown(name),
        names.join(", ")
    )
}

fn whole(field: &'static str, text: &str) -> Result<usize, Problem> {
    match text.parse::<usize>() {
        Ok(number) if (1..=MOST).contains(&number) => Ok(number),
        _ => wrong(field, format!("not a whole number from 1 to {MOST}")),
    }
}

fn share(field: &'static str, text: &str) -> Result<f64, Problem> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => wrong(field, "not a share from 0 to 1, such as 0.8"),
    }
}

fn weight_class(text: &str) -> Result<WeightClass, Problem> {
    match text {
        "bf16" | "fp16" => Ok(WeightClass::Bf16),
        "int8" => Ok(WeightClass::Int8),
        "int4" => Ok(WeightClass::Int4),
        _ => wrong("weights", format!("not one of {}", WEIGHTS.join(", "))),
    }
}

fn kv_dtype(text: &str) -> Result<KvDtype, Problem> {
    match text {
        "bf16" | "fp16" => Ok(KvDtype::Bf16),
        "int8" => Ok(KvDtype::Int8),
        _ => wrong("kv", format!("not one of {}", KV_DTYPES.join(", "))),
    }
}

/// All names, for a selection in a UI. Rates in operations and bytes per second, memory in bytes.
pub fn presets(here: &Here) -> Value {
    let models = ModelShape::known().map(
        |(name, shape)| json!({ "name": name, "parameters": shape.parameters(), "context_limit": shape.context_limit }),
    );
    let loaded = here.model.iter().map(|loaded| {
        let shape = &loaded.demands.shape;
        json!({
            "name": HERE,
            "title": loaded.name,
            "parameters": shape.parameters(),
            "context_limit": shape.context_limit,
            "weights": loaded.demands.weights.name(),
            "kv_dtype": loaded.demands.kv_dtype.name(),
        })
    });
    let machine = |machine: &Machine| {
        json!({
            "name": machine.name,
            "flops": machine.bf16_flops,
            "int8_ops": machine.int8_ops,
            "bandwidth": machine.bandwidth,
            "memory": machine.memory,
            "watts": machine.watts,
        })
    };
    let this = here.limits.iter().map(|limits| machine(&Machine::here(limits, WeightClass::Bf16, here.memory)));
    let known = Machine::known().map(|known| machine(&known));
    json!({
        "models": loaded.chain(models).collect::<Vec<_>>(),
        "machines": this.chain(known).collect::<Vec<_>>(),
        "weights": ["bf16", "int8", "int4"],
        "kv": ["bf16", "int8"],
    })
}
