//! Flags that nothing in the command makes use of are refused by name: taken in silence they would seem to have had an
//! effect.

use clap::ArgMatches;
use clap::parser::ValueSource;

/// A verb, some of its flags, and what makes use of them: another flag, a flag with one value, or a subject of `bench`.
type Use = (&'static str, &'static [&'static str], &'static [&'static str]);

const USES: &[Use] = &[
    ("bench", &["--model"], &["forward", "mixed", "nodes", "masks"]),
    ("bench", &["--weights"], &["forward", "mixed", "nodes", "products"]),
    ("bench", &["--kv-dtype"], &["forward", "mixed", "nodes"]),
    ("bench", &["--arithmetic", "--threads", "--isa"], COMPUTE),
    ("bench", &["--device"], &["forward", "mixed"]),
    ("serve", &["--standby"], &["--device"]),
    ("bench", &["--n-prompt", "--n-depth", "--parallel"], &["forward", "mixed", "nodes"]),
    ("bench", &["--n-gen"], &["forward", "nodes", "masks"]),
    ("bench", &["--batch-size"], &["forward", "nodes"]),
    ("bench", &["--lora-rank"], &["low-rank", "--synthetic-loras"]),
    ("bench", &["--repetitions"], MEASURED),
    ("bench-serve", &["--dataset-path"], &["--dataset-name trace"]),
    ("bench-serve", RANDOM, &["--dataset-name random"]),
    ("bench-serve", PREFIX_REPETITION, &["--dataset-name prefix_repetition"]),
    ("bench-serve", SESSIONS, &["--dataset-name sessions"]),
    ("bench-serve", &["--burstiness"], &["--request-rate", "--sweep-request-rate", "--ramp-up-strategy"]),
    ("bench-serve", &["--sweep-svg"], &["--sweep-request-rate", "--sweep-max-concurrency"]),
    ("bench-serve", &["--result-dir", "--result-filename"], &["--save-result", "--save-detailed"]),
    ("quality", &["--device"], &[]),
    ("plan", &["--threads", "--arithmetic"], &["--machine here", "--machine this", "--check"]),
    ("sim", &["--link"], &["--prefill", "--splits"]),
    ("sim", &["--burst-cv"], &["--workload bursty"]),
    ("sim", &["--prefixes"], &["--workload shared-prefix"]),
    ("sim", &["--prefix-tokens"], &["--workload shared-prefix", "--workload sessions"]),
    ("sim", &["--turns", "--pause"], &["--workload sessions"]),
];

const COMPUTE: &[&str] = &["forward", "mixed", "nodes", "products", "attention", "low-rank", "regions"];
/// All but `goodput`, which simulates.
const MEASURED: &[&str] =
    &["forward", "mixed", "nodes", "products", "attention", "low-rank", "regions", "draws", "masks"];
const RANDOM: &[&str] = &["--random-input-len", "--random-output-len", "--random-range-ratio", "--random-prefix-len"];
const PREFIX_REPETITION: &[&str] = &[
    "--prefix-repetition-prefix-len",
    "--prefix-repetition-suffix-len",
    "--prefix-repetition-num-prefixes",
    "--prefix-repetition-output-len",
];
const SESSIONS: &[&str] = &[
    "--sessions-num-turns",
    "--sessions-input-len",
    "--sessions-output-len",
    "--sessions-prefix-len",
    "--sessions-pause",
    "--sessions-length-cv",
];

/// The first flag that was given and is of no use, and what it needs.
pub(crate) fn unused(arguments: &ArgMatches) -> Option<String> {
    let (verb, given) = arguments.subcommand()?;
    let uses = USES.iter().filter(|(of, ..)| *of == verb);
    let idle = uses.filter(|(.., users)| !users.iter().any(|user| holds(given, user)));
    let mut flags = idle.flat_map(|(_, flags, users)| flags.iter().map(move |flag| (flag, users)));
    let Some((flag, users)) = flags.find(|(flag, _)| is_given(given, flag)) else { return idle_beside(given) };
    if users.is_empty() {
        return Some(format!("{flag} changes nothing of what {verb} measures"));
    }
    Some(format!("{flag} is of use only with {}", users.join(" or ")))
}

/// What the device that is asked for by name makes no use of: kernels of the CPU, or a CPU that stands by.
fn idle_beside(given: &ArgMatches) -> Option<String> {
    let takes = |flag: &str| given.ids().any(|known| known.as_str() == id(flag));
    let device = if takes("--device") { given.get_raw(&id("--device"))?.next()? } else { return None };
    let is = |start: &[u8]| device.as_encoded_bytes().starts_with(start);
    let is_idle = |flag| takes(flag) && is_given(given, flag);
    if is(b"gpu") && is_idle("--isa") {
        return Some("--isa chooses among the CPU's kernels, which --device gpu does not use".to_owned());
    }
    let stands_by = is(b"cpu") && is_idle("--standby");
    stands_by.then(|| "--standby is of use only with --device gpu or auto".to_owned())
}

fn holds(given: &ArgMatches, user: &str) -> bool {
    let (flag, value) = named(user);
    match value {
        Some(value) => given.get_raw(&id(flag)).is_some_and(|mut values| values.any(|one| one == value)),
        None => is_given(given, flag),
    }
}

/// A flag, and the value that it is to have.
fn named(user: &str) -> (&str, Option<&str>) {
    match user.split_once(' ') {
        Some((flag, value)) => (flag, Some(value)),
        None if user.starts_with("--") => (user, None),
        None => ("subject", Some(user)),
    }
}

fn is_given(given: &ArgMatches, flag: &str) -> bool {
    given.value_source(&id(flag)) == Some(ValueSource::CommandLine)
}

/// Clap's name of a flag.
fn id(flag: &str) -> String {
    flag.trim_start_matches("--").replace('-', "_")
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory};

    use super::*;
    use crate::flags::Cli;

    #[test]
    fn flags_are_of_use_where_something_uses_them() {
        let table = [
            ("sim --burst-cv 9", "--burst-cv is of use only with --workload bursty"),
            ("quality --device gpu", "--device changes nothing of what quality measures"),
            ("serve --standby cpu", "--standby is of use only with --device"),
            ("serve --standby cpu --device cpu", "--standby is of use only with --device gpu or auto"),
            ("serve --standby cpu --device gpu:1", ""),
            ("bench products --device gpu", "--device is of use only with forward or mixed"),
            ("bench --device gpu", ""),
            ("bench --isa avx2 --device gpu", "--isa chooses among the CPU's kernels, which --device gpu does not use"),
            (
                "bench --isa avx2 --device gpu:1",
                "--isa chooses among the CPU's kernels, which --device gpu does not use",
            ),
            ("bench --isa avx2 --device auto", ""),
            ("bench --isa avx2", ""),
            ("sim --trace x --turns 7", "--turns is of use only with --workload sessions"),
            (
                "sim --prefix-tokens 9",
                "--prefix-tokens is of use only with --workload shared-prefix or --workload sessions",
            ),
            ("sim --workload sessions --prefix-tokens 9 --turns 5 --pause 10s", ""),
            ("sim --workload bursty --burst-cv 3", ""),
            ("sim --link 25G", "--link is of use only with --prefill or --splits"),
            ("sim --link 25G --instances 2 --splits", ""),
            ("bench-serve --dataset-path x", "--dataset-path is of use only with --dataset-name trace"),
            ("bench-serve --input-len 5", ""),
            (
                "bench-serve --dataset-name sessions --input-len 5",
                "--random-input-len is of use only with --dataset-name random",
            ),
            ("bench-serve --result-dir x", "--result-dir is of use only with --save-result or --save-detailed"),
            ("bench-serve --result-filename x --save-detailed", ""),
            ("bench-serve --burstiness 2 --request-rate 5", ""),
            (
                "bench-serve --burstiness 2",
                "--burstiness is of use only with --request-rate or --sweep-request-rate or --ramp-up-strategy",
            ),
            ("bench -p 9 -n 9 -d 9 -b 9 -B 3 --weights int4 -m x", ""),
            ("bench draws --weights int4", "--weights is of use only with forward or mixed or nodes or products"),
            ("bench masks -m x -n 9 -r 2", ""),
            (
                "bench goodput -r 2",
                "--repetitions is of use only with forward or mixed or nodes or products or attention or low-rank or \
                 regions or draws or masks",
            ),
            ("bench low-rank --lora-rank 7 -t 1", ""),
            ("bench --lora-rank 7", "--lora-rank is of use only with low-rank or --synthetic-loras"),
            ("bench --lora-rank 7 --synthetic-loras 2", ""),
            ("plan -t 3", "--threads is of use only with --machine here or --machine this or --check"),
            ("plan --arithmetic pairs --machine here", ""),
            ("plan -t 3 --check", ""),
        ];
        for (line, wanted) in table {
            let matches = Cli::command().get_matches_from(["twostroke"].into_iter().chain(line.split(' ')));
            assert_eq!(unused(&matches).unwrap_or_default(), wanted, "{line}");
        }
    }

    #[test]
    fn every_name_is_a_flag_or_a_value_of_one() {
        let command = Cli::command();
        for (verb, flags, users) in USES {
            let verb = command.find_subcommand(verb).expect("a verb");
            let find = |name: &str| verb.get_arguments().find(|argument| argument.get_id() == id(name).as_str());
            for flag in *flags {
                assert_eq!(find(flag).and_then(Arg::get_long), flag.strip_prefix("--"));
            }
            for (flag, value) in users.iter().map(|user| named(user)) {
                let values = find(flag).unwrap_or_else(|| panic!("no {flag}")).get_possible_values();
                let has = |value| values.is_empty() || values.iter().any(|one| one.get_name() == value);
                assert!(value.is_none_or(has), "{flag} {value:?}");
            }
        }
    }
}
