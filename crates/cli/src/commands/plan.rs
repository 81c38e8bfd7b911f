//! `twostroke plan`: will it fit, how fast, how many at once, which phase limits. No weight is read.
//!
//! ```text
//! -m ------------> Shape (known, a count) or Loaded (a config.json, a GGUF file, a hub id in the cache) --+
//! --machine here -> limits, measured now; steps, if a start of `serve` has measured and kept them --------+--> plan::Plan
//! ```

mod check;

use std::path::Path;

use kernels::WeightClass;
use kernels::limits::Limits;
use launch::{Calibrate, Chosen, ModelSettings, Settings, machine};
use plan::{Ask, Deployment, HERE, Here, Loaded, NamedModel, PriceList, Problem, Question, Users, WhichMachine};
use roofline::{Machine, ROWS_HERE};

use crate::console::put_line;
use crate::failure::Failure;
use crate::flags::PlanFlags;
use crate::kept::On;
use crate::shapes::{self, Found};
use crate::{environment, figures, models, outputs};

pub(crate) fn plan(flags: &PlanFlags) -> Result<(), Failure> {
    if flags.check {
        return checked(flags);
    }
    let svg = flags.svg.as_ref().map(|path| outputs::place("--svg", path, outputs::Kind::Picture)).transpose()?;
    let found = shapes::found("-m", &flags.model)?;
    if let Some(found) = &found {
        models::writes(&found.name, &found.config).map_err(|problem| Failure::usage(format!("-m: {problem}")))?;
    }
    let context = found.as_ref().map(|found| found.config.context_limit);
    let context = context.or_else(|| NamedModel::find(&flags.model).map(|model| model.shape.context_limit));
    let question = question(flags, context)?;
    let here = here(flags, found)?;
    let question = match here.model {
        Some(_) => Question { model: HERE.to_string(), ..question },
        None => question,
    };
    let plan = question.plan(&here).map_err(|problem| refused(&problem, &flags.model))?;
    if let Some(place) = svg {
        outputs::put(&place, &plan.svg())?;
    }
    match flags.json {
        true => put_line(&plan.json().to_string()),
        false => put_line(plan.to_string().trim_end()),
    }
}

/// `context`: of the model, where it is known.
fn question(flags: &PlanFlags, context: Option<usize>) -> Result<Question, Failure> {
    let thinking = flags.thinking.unwrap_or(0);
    let prompt = flags.prompt.unwrap_or_else(|| {
        let written = flags.response.saturating_add(thinking);
        let left = context.map_or(usize::MAX, |context| context.saturating_sub(written));
        USUAL_PROMPT.min(left.max(1))
    });
    let machine = match (flags.flops, flags.bandwidth, &flags.machine) {
        (Some(flops), Some(bandwidth), None) => WhichMachine::Given { flops, bandwidth, memory: flags.memory },
        (_, _, name) => WhichMachine::Named(name.clone().unwrap_or_else(|| DEFAULT_MACHINE.to_string())),
    };
    let users = flags.users.map(|users| Users {
        users: users as f64,
        rate: flags.rate.expect("clap asks for it"),
        ttft: flags.ttft_slo,
        tpot: flags.tpot_slo,
    });
    let (acceptance, draft) = flags.acceptance.clone().unzip();
    let drafter = |name: String| Ok::<_, Failure>(NamedModel::new(&name, shapes::shape("--acceptance", &name)?));
    Ok(Question {
        model: flags.model.clone(),
        machine,
        machines: flags.machines_per_instance,
        link: flags.link,
        watts: flags.watts,
        prices: flags.price.clone().unwrap_or(PriceList::None),
        weights: flags.weights.class(),
        kv_dtype: flags.kv_dtype.map(|kv| kv.dtype()),
        expert_memory: flags.expert_memory,
        rows: flags.max_num_batched_tokens,
        ask: Ask {
            prompt,
            response: flags.response,
            thinking,
            cached: flags.cached,
            batch: flags.batch,
            utilization: flags.utilization,
            users,
        },
        acceptance,
        drafter: draft.flatten().map(drafter).transpose()?,
    })
}

/// Tokens of a prompt when nothing is said and the context has room for them.
const USUAL_PROMPT: usize = 1024;
/// What `--machine` is when nothing is said.
const DEFAULT_MACHINE: &str = "h100";

/// A parameter's name as a flag.
fn refused(problem: &Problem, model: &str) -> Failure {
    let flag = match problem.field {
        "model" => {
            return Failure::usage(format!(
                "-m: {}, or a directory, a GGUF file, a hub id in the cache",
                problem.problem
            ));
        }
        "machines" => "machines-per-instance",
        "rows" => "max-num-batched-tokens",
        "kv" => "kv-dtype",
        "expert_memory" => "expert-memory",
        "ttft" => "ttft-slo",
        "tpot" => "tpot-slo",
        other => other,
    };
    Failure::usage(format!(
        "--{flag}: {}",
        problem.problem.replace(HERE, if matches!(problem.field, "prompt" | "thinking") { model } else { HERE })
    ))
}

/// `--check`: this model on this machine, predicted and measured.
fn checked(flags: &PlanFlags) -> Result<(), Failure> {
    let name = Some(flags.model.as_str())
        .filter(|_| Path::new(&flags.model).exists() || NamedModel::find(&flags.model).is_none());
    let checkpoint = match name {
        Some(name) => models::open(Some(name))?,
        None => {
            let problem = format!("-m: {} is a shape without weights; --check takes what can be loaded", flags.model);
            return Err(Failure::usage(problem));
        }
    };
    let chosen = chosen(flags, shapes::class(&checkpoint));
    let limits = limits(flags)?;
    let engine = models::start(&checkpoint, &check::settings(settings(flags)), chosen)?;
    let model = engine.model();
    let calibrated = model.calibrated.as_ref();
    let cost = calibrated.ok_or_else(|| Failure::failed("there is too little KV cache to measure steps"))?.cost.clone();
    let machine = Machine::here(&limits, chosen.class, None);
    let shape = NamedModel::new(&model.name, model.config.shape());
    let by_limits = Deployment::new(&shape, chosen.class, model.kv_dtype, machine);
    let by_steps = Deployment { cost, ..by_limits.clone() };
    let done = check::check(&engine, &by_limits, &by_steps, flags.json);
    engine.stop();
    done
}

/// An engine as `serve` starts it, so that what one has measured the other finds.
fn settings(flags: &PlanFlags) -> Settings {
    let model = ModelSettings {
        weights: flags.weights.class(),
        kv_dtype: flags.kv_dtype.map(|kv| kv.dtype()).unwrap_or_default(),
        arithmetic: flags.arithmetic.arithmetic(),
        threads: flags.threads,
        cache: environment::variables().packed_cache,
        ..ModelSettings::default()
    };
    let max_num_batched_tokens = Some(ROWS_HERE);
    Settings { max_num_batched_tokens, calibrate: Calibrate::Kept, ..models::settings_of(model) }
}

/// The weights that planning counts on, of which `stored` is what the checkpoint holds: what fits is part of the
/// answer.
fn chosen(flags: &PlanFlags, stored: Option<WeightClass>) -> Chosen {
    let class = flags.weights.class().or(stored).unwrap_or(WeightClass::Bf16);
    let as_stored = flags.weights.class().is_none() && stored.is_some_and(|class| class != WeightClass::Bf16);
    Chosen { class, as_stored, why: None }
}

fn limits(flags: &PlanFlags) -> Result<Limits, Failure> {
    let directory = environment::variables().packed_cache;
    figures::limits(
        figures::Measure::IfOld,
        On::cpu(flags.threads, flags.arithmetic.arithmetic()),
        directory.as_deref(),
    )
}

/// What is known of this machine: its limits if they are asked for, and the model if it is stored here.
fn here(flags: &PlanFlags, found: Option<Found>) -> Result<Here, Failure> {
    let is_here = flags.machine.as_deref().is_some_and(plan::is_here);
    let limits = is_here.then(|| limits(flags)).transpose()?;
    let memory = machine::memory().map(|(_, available)| available as f64);
    let model = found.map(|Found { name, config, stored }| {
        let (settings, chosen) = (settings(flags), chosen(flags, stored));
        let (weights, kv_dtype) = (chosen.class, settings.model.kv_dtype);
        let shape = config.shape();
        let (cost, doubt) = settings.options(chosen).kept_cost(&config).filter(|_| is_here).unzip();
        Loaded {
            name,
            demands: shape.demands(weights, kv_dtype),
            unread_bytes: shape.unread_bytes(weights),
            cost,
            doubt: doubt.flatten(),
            kv_tokens: None,
            rows: ROWS_HERE,
        }
    });
    Ok(Here { limits, memory: memory.filter(|_| is_here), model })
}
