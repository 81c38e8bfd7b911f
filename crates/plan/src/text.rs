//! A plan as text: the answers first, the figures below.

use std::fmt;

use roofline::{Basis, NOT_KNOWN};

use crate::units::{duration, percent, prefixed, rate, thousands};
use crate::{
    Choices, Deployment, Division, DivisionVerdict, FleetSize, HERE, PhaseCost, Plan, Profile, SpeculationPlan,
    Thinking,
};

/// Bytes with a decimal prefix, as in product specifications.
fn size(bytes: f64) -> String {
    match prefixed(bytes) {
        text if text.contains(' ') => text + "B",
        text => text + " B",
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { deployment, ask, .. } = self;
        let (demands, machine) = (&deployment.demands, &deployment.machine);
        writeln!(
            f,
            "{} on {}: {} weights, {} KV cache; prompt {}, response {}, batch {}",
            deployment.name,
            self.machine(),
            demands.weights.name(),
            demands.kv_dtype.name(),
            thousands(ask.prompt as u64),
            thousands(ask.response as u64),
            thousands(ask.batch as u64),
        )?;
        writeln!(f, "by {}", machine.basis.words())?;
        if let Some(doubt) = self.doubt() {
            writeln!(f, "not sure: {doubt}")?;
        }
        if let Some(assumed) = deployment.assumed {
            writeln!(f, "only the size is known: heads and layers, for attention and cache, are taken from {assumed}")?;
        }
        writeln!(f)?;
        let answers = [
            ("fits?", self.fits()),
            ("how fast?", self.speed()),
            ("how many at once?", self.at_once()),
            ("what limits?", self.limits()),
        ];
        for (question, answer) in answers {
            writeln!(f, "  {question:<18} {answer}")?;
        }
        if let Some(thinking) = &self.thinking {
            writeln!(f, "  {:<18} {}", "with reasoning?", self.thought(thinking))?;
        }
        if let Some(speculation) = &self.speculation {
            writeln!(f, "  {:<18} {}", "with speculation?", self.speculated(speculation))?;
        }
        if let Some(fleet) = self.fleet_lines() {
            writeln!(f, "  {:<18} {fleet}", "how many machines?")?;
        }
        if let Some(fleet) = &self.fleet {
            writeln!(f, "  {:<18} {}", "disaggregated?", wrapped(&self.divided(fleet)))?;
        }
        if let Some(costs) = self.costs_line() {
            writeln!(f, "  {:<18} {}", "what does it cost?", wrapped(&costs))?;
        }
        if let Some(choices) = &self.choices {
            writeln!(f, "  {:<18} {}", "which machines?", wrapped(&choices.words()))?;
            choice_table(f, choices)?;
        }
        writeln!(f)?;
        self.profile_table(f)?;
        writeln!(f)?;
        self.memory_line(f)?;
        writeln!(f)?;
        self.prompt_table(f)?;
        writeln!(f)?;
        self.batch_table(f)
    }
}

impl Plan {
    /// The machine in a sentence: its name, or its figures.
    fn machine(&self) -> String {
        let machine = &self.deployment.machine;
        match (machine.basis, machine.name.as_str()) {
            (Basis::Given, _) => {
                format!("{}FLOP/s, {}B/s", joined(machine.bf16_flops), joined(machine.bandwidth))
            }
            (_, HERE) => "this machine".to_string(),
            (_, name) => name.to_string(),
        }
    }

    fn fits(&self) -> String {
        let memory = &self.memory;
        let weights = size(memory.weights);
        match (memory.total, memory.requests) {
            (_, None) => format!("unknown: no memory size was given; the weights take {weights}"),
            (Some(total), Some(0)) if memory.weights + memory.reserved >= total => {
                format!("no: the weights take {weights}, and {} has {}", self.machine(), size(total))
            }
            (_, Some(0)) => {
                format!("no: beside {weights} of weights a request of {} does not fit", size(memory.kv_per_request))
            }
            (_, Some(requests)) if requests < self.ask.batch as u64 => {
                format!("no: {} of {} requests do", thousands(requests), thousands(self.ask.batch as u64))
            }
            (Some(total), _) if self.deployment.kv_tokens.is_none() => {
                format!("yes: {weights} of weights in {}", size(total))
            }
            _ => format!("yes: {weights} of weights, and the cache is already allocated"),
        }
    }

    fn speed(&self) -> String {
        let times = &self.times;
        let mut text = format!("first token after {}", duration(times.ttft));
        if self.ask.written() > 1 {
            text += &format!(
                ", then one each {} ({}): {} in all",
                duration(times.tpot),
                rate(1.0 / times.tpot),
                duration(times.total)
            );
        }
        text
    }

    fn at_once(&self) -> String {
        let fit = match self.memory.requests {
            None => String::new(),
            Some(requests) => format!("{} of this length fit; ", thousands(requests)),
        };
        match self.knee {
            None => format!("{fit}a larger batch always pays"),
            Some(knee) if self.memory.requests.is_some_and(|requests| requests < knee as u64) => {
                format!("{fit}memory ends before a larger batch stops paying, at {}", thousands(knee as u64))
            }
            Some(knee) => {
                format!("{fit}beyond a batch of {} throughput does not grow", thousands(knee as u64))
            }
        }
    }

    fn thought(&self, thinking: &Thinking) -> String {
        let fit = match (thinking.requests_without, self.memory.requests) {
            (Some(without), Some(with)) if with < without => {
                format!("; {} fit at once instead of {}", thousands(with), thousands(without))
            }
            _ => String::new(),
        };
        format!(
            "{} reasoning tokens take {}: first visible token after {}; {} in all instead of {}{fit}",
            thousands(self.ask.thinking as u64),
            duration(thinking.seconds),
            duration(thinking.visible),
            duration(self.times.total),
            duration(thinking.total_without),
        )
    }

    fn speculated(&self, speculation: &SpeculationPlan) -> String {
        let SpeculationPlan { acceptance, drafts, tokens, step, drafting, tpot, gain, stops_at } = *speculation;
        let held = percent(acceptance);
        let by = self.drafter().map_or(String::new(), |drafter| format!(" by {}", drafter.name));
        if drafts == 0.0 {
            let instead = match stops_at {
                Some(1) => "each costs more time than it brings".to_string(),
                Some(batch) => format!("below a batch of {} some do", thousands(batch as u64)),
                None => "at others some do".to_string(),
            };
            return format!("if {held} are accepted, no draft{by} pays at this batch; {instead}");
        }
        let passes = if drafting > 0.0 { format!(", {} of it drafting", duration(drafting)) } else { String::new() };
        let stops = match stops_at {
            Some(batch) => format!("none pays from a batch of {} on", thousands(batch as u64)),
            None => "some pay at any batch".to_string(),
        };
        format!(
            "if {held} are accepted, {} drafts a step{by}: {tokens:.2} tokens in {}{passes}, TPOT {}, {gain:.2} times as fast; {stops}",
            few(drafts),
            duration(step),
            duration(tpot),
        )
    }

    /// The draft model, if any.
    pub(crate) fn drafter(&self) -> Option<&Deployment> {
        self.deployment.speculation.as_ref()?.drafter.as_deref()
    }

    fn limits(&self) -> String {
        let phase = |name, profile: &Profile| format!("{name} by {}", profile.bound);
        format!(
            "{}, {} of the answer's time ({}, {})",
            self.dominant(),
            percent(if self.dominant() == "prefill" { self.prefill.share } else { self.decode.share }),
            phase("prefill is bound", &self.prefill),
            phase("decode", &self.decode),
        )
    }

    fn fleet_lines(&self) -> Option<String> {
        let users = self.ask.users?;
        let Some(fleet) = &self.fleet else { return Some("none: not one request fits".to_string()) };
        let limiting = if fleet.prefill_share > 0.5 { "prefill" } else { "decode" };
        let missed = if fleet.misses_target { " The target is out of reach." } else { "" };
        Some(format!(
            "{} for {} users ({:.3} requests/s), {} busy; {limiting} limits: prefill takes {} of their time.\n{:21}Batches \
             of {} ({}), a token each {}.{missed}",
            thousands(fleet.machines),
            thousands(users.users as u64),
            users.users * users.rate,
            percent(self.ask.utilization),
            percent(fleet.prefill_share),
            "",
            fleet.batch,
            fleet.cap.words(),
            duration(fleet.tpot),
        ))
    }

    /// Whether disaggregated prefill and decode pay, and why.
    pub(crate) fn divided(&self, fleet: &FleetSize) -> String {
        let Division { batch, busy: [prefill, decode], bytes_per_prompt, link, verdict, .. } = fleet.division;
        let machines = |count: u64| format!("{} machine{}", thousands(count), if count == 1 { "" } else { "s" });
        let apart = format!(
            "{prefill:.2} busy in prefill and {decode:.2} in decode, {} in all",
            machines(fleet.division.machines)
        );
        let travels =
            format!("{} transferred per prompt, {}/s from a busy prefill machine", size(bytes_per_prompt), size(link));
        let larger = format!("without others' prompts {batch} decode at once within the target, not {}", fleet.batch);
        match verdict {
            DivisionVerdict::MeetsTarget => {
                format!("pays: together the target is out of reach; {apart}, meet it. {travels}")
            }
            DivisionVerdict::Fewer => {
                format!("pays: {apart}, instead of {}: {larger}. {travels}", machines(fleet.machines))
            }
            DivisionVerdict::OneMachine => format!(
                "does not pay: one machine is enough, and its cores share one memory: a process for each phase would hold \
                 and read the {} of weights once more",
                size(self.memory.weights)
            ),
            DivisionVerdict::NothingToWin => format!(
                "does not pay: the work is the same, and others' prompts keep no batch small; {apart}, instead of {}",
                machines(fleet.machines)
            ),
            DivisionVerdict::TooLittle => {
                format!("does not pay: {larger}, but {apart}, are not fewer than {}", machines(fleet.machines))
            }
            DivisionVerdict::OutOfReach => "does not pay: even a single request misses the target".to_string(),
        }
    }

    /// `None` if neither a price nor the power of the machine is known.
    fn costs_line(&self) -> Option<String> {
        let costs = self.costs();
        let of = |cost: &PhaseCost| {
            let energy = cost.watt_hours.map(|hours| format!("{}Wh", joined(hours)));
            let parts: Vec<String> = cost.price.map(money).into_iter().chain(energy).collect();
            (!parts.is_empty()).then(|| parts.join(" and "))
        };
        let cached = costs.cached.as_ref().and_then(of).map_or(String::new(), |cached| format!("cached {cached}, "));
        Some(format!(
            "a million tokens: input {}, {cached}output {}, at a batch of {} and {} busy; this request {}",
            of(&costs.input)?,
            of(&costs.output)?,
            thousands(costs.batch as u64),
            percent(self.ask.utilization),
            of(&costs.request)?,
        ))
    }

    fn profile_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header =
            ["one request", "steps", "tokens", "FLOP", "read", "FLOP/byte", "floor", "predicted", "time", "bound by"];
        let row = |name: &str, profile: &Profile| {
            [
                name.to_string(),
                thousands(profile.passes as u64),
                thousands(profile.tokens as u64),
                prefixed(profile.flops),
                size(profile.bytes),
                intensity(profile.intensity),
                duration(profile.floor),
                duration(profile.seconds),
                percent(profile.share),
                match &profile.shares {
                    Some(shares) => format!("{} ({} of limit)", profile.bound, percent(shares.of_limit())),
                    None => format!("{}, {NOT_KNOWN}", profile.bound),
                },
            ]
        };
        table(f, &header, &[row("prefill", &self.prefill), row("decode", &self.decode)])?;
        writeln!(
            f,
            "  on paper, the weights alone: {}FLOP a token, {} for the prompt, {} for a token of one request",
            joined(
                self.deployment.demands.shape.flops_per_token() + self.deployment.demands.shape.flops_per_logit_row()
            ),
            duration(self.deployment.prefill_weights(self.ask.prompt)),
            duration(self.deployment.decode_weights()),
        )
    }

    fn memory_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { memory, deployment, .. } = self;
        write!(
            f,
            "  memory: {} weights + {} of KV cache per request ({} per token)",
            size(memory.weights),
            size(memory.kv_per_request),
            size(memory.kv_per_token),
        )?;
        if memory.states_per_request > 0.0 {
            write!(f, " + {} of states per request", size(memory.states_per_request))?;
        }
        write!(f, " + {} activations", size(memory.activations))?;
        if deployment.expert_memory.is_some() {
            write!(
                f,
                " + {} of experts on disk, of which a token of one request reads {} if all are used alike; that time is \
                 not in these figures",
                size(deployment.expert_bytes_on_disk()),
                size(deployment.expert_bytes_read(1.0))
            )?;
        }
        match memory.left {
            Some(left) if self.deployment.kv_tokens.is_some() => writeln!(f, "; the cache has {}", size(left)),
            Some(left) => writeln!(f, "; {} left for the cache, {} kept free", size(left), size(memory.reserved)),
            None => writeln!(f),
        }
    }

    fn prompt_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header =
            ["prompt", "TTFT", "TPOT", "prefill share", "attention share", "prefill bound by", "decode bound by"];
        let rows: Vec<[String; 7]> = self
            .by_prompt
            .iter()
            .map(|length| {
                [
                    thousands(length.prompt as u64),
                    duration(length.ttft),
                    duration(length.tpot),
                    percent(length.prefill_share),
                    percent(length.attention_share),
                    length.prefill_bound.to_string(),
                    length.decode_bound.to_string(),
                ]
            })
            .collect();
        table(f, &header, &rows)
    }

    fn batch_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["batch", "TPOT", "throughput", "FLOP/byte", "bound by", "fits"];
        let rows: Vec<[String; 6]> = self
            .by_batch
            .iter()
            .map(|seats| {
                [
                    thousands(seats.batch as u64),
                    duration(seats.tpot),
                    rate(seats.tokens_per_second),
                    intensity(seats.intensity),
                    seats.bound.to_string(),
                    seats.fits.map_or("?", |fits| if fits { "yes" } else { "no" }).to_string(),
                ]
            })
            .collect();
        table(f, &header, &rows)?;
        match self.deployment.machine.basis {
            Basis::Preset | Basis::Given => Ok(()),
            Basis::Limits | Basis::Steps => writeln!(f, "  --check measures what is predicted here"),
        }
    }
}

/// The machines that meet the targets.
fn choice_table(f: &mut fmt::Formatter<'_>, choices: &Choices) -> fmt::Result {
    if choices.rows.is_empty() {
        return Ok(());
    }
    let header = ["machines", "instances", "weights", "batch", "TTFT", "TPOT", "price/h", "power", "batch capped by"];
    let rows = choices.rows.iter().map(|row| {
        [
            format!("{} x {}", thousands(row.cards()), row.machine),
            format!("{} of {}", thousands(row.fleet.machines), row.count),
            row.weights.name().to_string(),
            row.fleet.batch.to_string(),
            duration(row.fleet.ttft),
            duration(row.fleet.tpot),
            row.price.map_or("?".to_string(), money),
            row.watts.map_or("?".to_string(), |watts| format!("{}W", joined(watts))),
            row.fleet.cap.words().to_string(),
        ]
    });
    writeln!(f)?;
    table(f, &header, &rows.collect::<Vec<_>>())?;
    match choices.left_off {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

/// Formats as `0.04`, `6.77`, `0.0025`: two decimals, or two digits of what is smaller.
fn money(price: f64) -> String {
    let decimals = if price > 0.0 { (1.0 - price.log10()).ceil().clamp(2.0, 9.0) as usize } else { 2 };
    format!("{price:.decimals$}")
}

/// Formats as `1.03`, `40.5`, `1,024`.
fn intensity(operations_per_byte: f64) -> String {
    if operations_per_byte < 999.5 {
        prefixed(operations_per_byte)
    } else {
        thousands(operations_per_byte.round() as u64)
    }
}

/// Formats as `3`, `1.5`: an integer, or a mean.
fn few(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

/// Formats as `14 G`: with a space before the unit.
fn joined(value: f64) -> String {
    let text = prefixed(value);
    if text.contains(' ') { text } else { text + " " }
}

/// Wraps a long answer into lines of about a hundred characters beside the question.
fn wrapped(text: &str) -> String {
    const MOST: usize = 100;
    let (mut out, mut len) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count() + 1;
        if len > 0 && len + width > MOST {
            out += &format!("\n{:21}", "");
            len = 0;
        } else if len > 0 {
            out.push(' ');
        }
        out += word;
        len += width;
    }
    out
}

/// Right-aligned columns, the first left-aligned.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, header: &[&str; N], rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let header = header.map(str::to_string);
    for row in [&header].into_iter().chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line += &if column == 0 { format!("  {cell:<width$}") } else { format!("   {cell:>width$}") };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}
