//! Names that metrics had in the release before: for one release each is written beside its successor, so that boards
//! and alerts can move.

use std::fmt::Write;

use super::{Page, Prometheus};

/// The old name, the new one, and how many of the old unit are one of the new. Goes with the next release.
const ALIASES: [(&str, &str, f64); 21] = [
    ("twostroke_stolen_seconds_total", "twostroke_cpu_steal_seconds_total", 1.0),
    ("twostroke_limit_ratio", "twostroke_roofline_utilization", 1.0),
    ("twostroke_gap_seconds_total", "twostroke_itl_seconds_total", 1.0),
    ("twostroke_promises_total", "twostroke_latency_bounds_total", 1.0),
    ("twostroke_promises_kept_ratio", "twostroke_latency_bound_coverage", 1.0),
    ("twostroke_handoffs_total", "twostroke_remote_prefills_total", 1.0),
    ("twostroke_handoff_bytes_total", "twostroke_kv_transfer_bytes_total", 1.0),
    ("twostroke_handoff_blocks_total", "twostroke_kv_transfer_blocks_total", 1.0),
    ("twostroke_handoff_kept_blocks", "twostroke_pinned_blocks", 1.0),
    ("twostroke_handoff_mismatches_total", "twostroke_remote_prefill_mismatches_total", 1.0),
    ("twostroke_held_seconds_total", "twostroke_paused_seconds_total", 1.0),
    ("twostroke_probes_total", "twostroke_admission_probes_total", 1.0),
    ("twostroke_refused_late_total", "twostroke_rejected_late_total", 1.0),
    ("twostroke_prefill_backlog_milliseconds", "twostroke_prefill_backlog_seconds", 1e3),
    ("twostroke_speculation_off_steps_total", "twostroke_spec_decode_skipped_steps_total", 1.0),
    ("twostroke_rejected_drafts_seconds_total", "twostroke_spec_decode_rejected_seconds_total", 1.0),
    ("twostroke_text_wait_seconds_total", "twostroke_prepare_queue_seconds_total", 1.0),
    ("twostroke_text_seconds_total", "twostroke_prepare_seconds_total", 1.0),
    ("twostroke_text_jobs", "twostroke_prepare_jobs", 1.0),
    ("twostroke_oldest_late_seconds", "twostroke_late_prompt_age_seconds", 1.0),
    ("twostroke_requests_late", "twostroke_late_prompts", 1.0),
];

/// Writes each sample of a renamed metric once more under its old name.
pub(super) fn write(page: &mut Page<'_>) {
    let current = page.text.clone();
    for (old, new, scale) in ALIASES {
        let mut samples = samples(&current, new).peekable();
        if samples.peek().is_none() {
            continue;
        }
        let kind = if new.ends_with("_total") { "counter" } else { "gauge" };
        page.family(old, kind, &format!("Deprecated, see {new}; removed in the next release."));
        for (labels, value) in samples {
            let _ = writeln!(page.text, "{old}{labels} {}", Prometheus(value * scale));
        }
    }
}

/// The labels, in their braces, and the values of a metric without buckets.
fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    page.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        let is_whole_name = labels.is_empty() || labels.starts_with('{');
        is_whole_name.then_some((labels, value.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use engine::{Handoffs, Stats};

    use super::*;
    use crate::metrics::Exposition;
    use crate::metrics::tests::page;

    #[test]
    fn an_old_name_has_the_value_of_its_successor() {
        let handoffs = Handoffs { takes_part: true, bytes_taken: 7, ..Handoffs::default() };
        let stats = Stats { prefill_backlog_seconds: 0.25, stolen_seconds: [1.5, 2.5], handoffs, ..Stats::default() };
        for exposition in [Exposition::Text, Exposition::OpenMetrics(&|_| unreachable!("nothing was observed"))] {
            let page = page(&stats, exposition);
            // Shares of limits are there only where the limits were measured.
            for (old, new, scale) in ALIASES.into_iter().filter(|(_, new, _)| *new != "twostroke_roofline_utilization")
            {
                let expected: Vec<_> = samples(&page, new).map(|(labels, value)| (labels, value * scale)).collect();
                assert!(!expected.is_empty(), "no metric {new}");
                // As text, for a share of nothing is no number, which equals nothing.
                assert_eq!(format!("{:?}", samples(&page, old).collect::<Vec<_>>()), format!("{expected:?}"), "{old}");
                assert!(page.contains(&format!(" Deprecated, see {new}; removed in the next release.\n")), "{old}");
            }
        }
    }

    #[test]
    fn an_old_name_keeps_its_unit() {
        let page = page(&Stats { prefill_backlog_seconds: 0.25, ..Stats::default() }, Exposition::Text);
        assert!(page.contains("\ntwostroke_prefill_backlog_seconds 0.25\n"));
        assert!(page.contains("\ntwostroke_prefill_backlog_milliseconds 250\n"));
    }
}
