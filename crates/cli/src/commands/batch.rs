//! `twostroke batch`: a file of requests, a file of answers.

use batches::{BatchInput, BatchOutput, BatchRun, Counts, InputError, Local, Stopped};
use engine::Engine;
use launch::Settings;
use serde_json::json;
use server::{ParserOptions, ServerOptions};

use crate::console::{Progress, note, put_line};
use crate::failure::Failure;
use crate::flags::BatchFlags;
use crate::signals::{self, Ends};
use crate::{environment, models};

pub(crate) fn batch(flags: &BatchFlags) -> Result<(), Failure> {
    // Before a weight is read: both files may be wrong.
    let input = BatchInput::check(&flags.input, None).map_err(|error| input_failure(flags, &error))?;
    let output = BatchOutput::open(&flags.output, &input).map_err(|error| Failure::usage(format!("-o: {error}")))?;
    if output.len() == input.len() {
        let counts = Counts { total: input.len(), done: output.len(), failed: output.failed(), ..Counts::default() };
        note(&format!("all {} requests are answered already", counts.total));
        return tell(flags, counts);
    }
    if !output.is_empty() {
        note(&format!("{} of {} requests are answered already: going on", output.len(), input.len()));
    }
    let checkpoint = models::open(flags.model.model.as_deref())?;
    let chosen = models::weights(&flags.model, &checkpoint)?;
    let engine = models::start(&checkpoint, &settings(flags)?, chosen)?;
    let counts = finish(flags, engine, &input, output)?;
    tell(flags, counts)
}

fn finish(flags: &BatchFlags, engine: Engine, input: &BatchInput, output: BatchOutput) -> Result<Counts, Failure> {
    let options = ServerOptions {
        served_model_names: models::names_for_clients(&flags.served_model_name, flags.model.model.as_deref()),
        parsers: ParserOptions {
            tool_call_parser: flags.tool_call_parser.clone(),
            reasoning_parser: flags.reasoning_parser.clone(),
        },
        ..ServerOptions::default()
    };
    let runtime = signals::runtime(1)?;
    let bar = Progress::counting("answering", "requests");
    runtime.block_on(async {
        let mut ends = Ends::listen()?;
        let local = Local::new(server::local(engine, &options).map_err(Failure::usage)?);
        let mut run = BatchRun::new(local, input, output, None).map_err(|error| input_failure(flags, &error))?;
        let finished = tokio::select! {
            finished = run.finish(|counts| bar.at(counts.done as u64, counts.total as u64)) => Some(finished),
            () = ends.recv() => None,
        };
        drop(bar);
        match finished {
            Some(Ok(counts)) => Ok(counts),
            Some(Err(Stopped::Input(error))) => Err(input_failure(flags, &error)),
            Some(Err(Stopped::Output(error))) => Err(Failure::failed(error)),
            Some(Err(error @ Stopped::ShuttingDown)) => Err(Failure::failed(error)),
            None => {
                let Counts { done, total, .. } = run.counts();
                note(&format!("stopped: {done} of {total} requests are answered; the same command goes on"));
                Err(Failure::Interrupted)
            }
        }
    })
}

fn settings(flags: &BatchFlags) -> Result<Settings, Failure> {
    Ok(Settings {
        max_model_len: flags.max_model_len,
        max_num_seqs: flags.max_num_seqs,
        max_num_batched_tokens: Some(flags.max_num_batched_tokens),
        kv_cache_bytes: flags.kv_cache_memory_bytes,
        hash_key: environment::random_bytes()?,
        seed: u64::from_le_bytes(environment::random_bytes()?[..8].try_into().expect("8 of 32 bytes")),
        ..models::settings(&flags.model)
    })
}

/// The sums, and code 1 where a line was refused.
fn tell(flags: &BatchFlags, counts: Counts) -> Result<(), Failure> {
    let Counts { total, done, failed, prompt_tokens, completion_tokens, .. } = counts;
    if flags.json {
        put_line(
            &json!({
                "total": total,
                "completed": done - failed,
                "failed": failed,
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
            })
            .to_string(),
        )?;
    } else {
        note(&format!("{done} requests answered, {failed} of them refused"));
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::failed(format!("{failed} of {total} requests were refused: {} says why", flags.output.display())))
}

fn input_failure(flags: &BatchFlags, error: &InputError) -> Failure {
    match error {
        InputError::Unreadable { .. } => Failure::usage(format!("-i: {error}")),
        _ => Failure::usage(format!("-i: {}: {error}", flags.input.display())),
    }
}
