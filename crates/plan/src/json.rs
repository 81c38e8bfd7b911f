//! A plan as JSON: the output of `twostroke plan --json` and of the server's `/plan`. Times in milliseconds, rates per
//! second, sizes in bytes.

use serde_json::{Value, json};

use crate::units::rounded;
use crate::{Choices, Costs, FleetSize, PhaseCost, Plan, Profile, SpeculationPlan};

pub(crate) fn ms(seconds: f64) -> f64 {
    // Floors are compared exactly.
    (seconds * 1e9).round() / 1e6
}

impl Plan {
    /// The whole plan.
    pub fn json(&self) -> Value {
        let Plan { deployment, ask, memory, times, .. } = self;
        let (shape, machine) = (&deployment.demands.shape, &deployment.machine);
        let peaks = deployment.peaks();
        json!({
            "model": {
                "name": deployment.name,
                "parameters": shape.parameters(),
                "active_parameters": shape.active_parameters + shape.head_parameters,
                "weights": deployment.demands.weights.name(),
                "kv_dtype": deployment.demands.kv_dtype.name(),
                "context_limit": shape.context_limit,
                "flops_per_token": shape.flops_per_token() + shape.flops_per_logit_row(),
                "heads_assumed_of": deployment.assumed,
            },
            "machine": {
                "name": machine.name,
                "flops": peaks.matrix,
                "bandwidth": peaks.bandwidth,
                "memory": machine.memory,
                "flops_share": machine.flops_share,
                "bandwidth_share": machine.bandwidth_share,
                "rows": machine.rows,
                "count": machine.count,
                "watts": machine.watts,
                "price_per_hour": machine.price_per_hour,
                "basis": machine.basis.words(),
                "not_sure": self.doubt(),
            },
            "ask": {
                "prompt": ask.prompt,
                "cached": ask.cached_tokens(),
                "response": ask.response,
                "thinking": ask.thinking,
                "batch": ask.batch,
                "utilization": ask.utilization,
            },
            "fits": memory.fits(ask.batch),
            "ttft_ms": ms(times.ttft),
            "ttft_alone_ms": ms(times.ttft_alone),
            "tpot_ms": ms(times.tpot),
            "total_ms": ms(times.total),
            "tokens_per_second": ask.batch as f64 / times.tpot,
            "thinking": self.thinking.map(|thinking| json!({
                "ms": ms(thinking.seconds),
                "first_visible_ms": ms(thinking.visible),
                "total_without_ms": ms(thinking.total_without),
                "requests_without": thinking.requests_without,
            })),
            "speculation": self.speculation.as_ref().map(|speculation| self.speculation_json(speculation)),
            "floors": {
                "ttft_ms": ms(self.prefill.floor),
                "tpot_ms": ms(deployment.decode_floor(ask.batch, ask.mean_context())),
                "weights_ttft_ms": ms(deployment.prefill_weights(ask.computed())),
                "weights_tpot_ms": ms(deployment.decode_weights()),
            },
            "experts": deployment.expert_memory.map(|memory| json!({
                "memory": memory,
                "on_disk": deployment.expert_bytes_on_disk(),
                "read_by_token": deployment.expert_bytes_read(1.0),
            })),
            "memory": {
                "total": memory.total,
                "weights": memory.weights,
                "kv_per_token": memory.kv_per_token,
                "kv_per_request": memory.kv_per_request,
                "states_per_request": memory.states_per_request,
                "activations": memory.activations,
                "reserved": memory.reserved,
                "left": memory.left,
                "requests": memory.requests,
            },
            "prefill": profile(&self.prefill),
            "decode": profile(&self.decode),
            "dominant": self.dominant(),
            "limiting": self.limiting(),
            "knee": self.knee,
            "by_prompt": self.by_prompt.iter().map(|length| json!({
                "prompt": length.prompt,
                "ttft_ms": ms(length.ttft),
                "tpot_ms": ms(length.tpot),
                "prefill_share": rounded(length.prefill_share),
                "attention_share": rounded(length.attention_share),
                "prefill_bound_by": length.prefill_bound.name(),
                "decode_bound_by": length.decode_bound.name(),
            })).collect::<Vec<_>>(),
            "by_batch": self.by_batch.iter().map(|seats| json!({
                "batch": seats.batch,
                "tpot_ms": ms(seats.tpot),
                "tokens_per_second": rounded(seats.tokens_per_second),
                "intensity": rounded(seats.intensity),
                "bound_by": seats.bound.name(),
                "fits": seats.fits,
            })).collect::<Vec<_>>(),
            "curves": self.curves(),
            "cost": costs(&self.costs()),
            "choices": self.choices.as_ref().map(choices),
            "fleet": self.fleet.as_ref().map(|size| fleet(size, &self.divided(size))),
        })
    }

    fn speculation_json(&self, speculation: &SpeculationPlan) -> Value {
        json!({
            "acceptance": speculation.acceptance,
            "drafter": self.drafter().map(|drafter| json!({
                "name": drafter.name,
                "weights": drafter.demands.weights.name(),
                "weight_bytes": drafter.demands.weight_bytes as f64 + drafter.unread_bytes as f64,
            })),
            "drafts": rounded(speculation.drafts),
            "tokens_per_step": rounded(speculation.tokens),
            "step_ms": ms(speculation.step),
            "drafting_ms": ms(speculation.drafting),
            "tpot_ms": ms(speculation.tpot),
            "gain": rounded(speculation.gain),
            "stops_at_batch": speculation.stops_at,
        })
    }
}

fn profile(profile: &Profile) -> Value {
    json!({
        "passes": profile.passes,
        "tokens": profile.tokens,
        "flops": profile.flops,
        "attention_flops": profile.attention_flops,
        "bytes": profile.bytes,
        "intensity": rounded(profile.intensity),
        "ms": ms(profile.seconds),
        "share": rounded(profile.share),
        "machine_ms": ms(profile.machine_seconds),
        "floor_ms": ms(profile.floor),
        "compute_percent": profile.shares.map(|shares| rounded(shares.compute * 100.0)),
        "memory_percent": profile.shares.map(|shares| rounded(shares.memory * 100.0)),
        "bound_by": profile.bound.name(),
    })
}

fn fleet(fleet: &FleetSize, why: &str) -> Value {
    let division = &fleet.division;
    json!({
        "users": fleet.users.users,
        "requests_per_second": fleet.users.users * fleet.users.rate,
        "batch": fleet.batch,
        "batch_capped_by": fleet.cap.words(),
        "misses_target": fleet.misses_target,
        "ttft_ms": ms(fleet.ttft),
        "requests_per_second_per_machine": fleet.per_machine,
        "tpot_ms": ms(fleet.tpot),
        "prefill_share": rounded(fleet.prefill_share),
        "limiting": if fleet.prefill_share > 0.5 { "prefill" } else { "decode" },
        "busy_machines": rounded(fleet.busy),
        "machines": fleet.machines,
        "apart": {
            "prefill": rounded(division.busy[0]),
            "decode": rounded(division.busy[1]),
            "batch": division.batch,
            "machines": division.machines,
            "bytes_per_prompt": division.bytes_per_prompt,
            "link_bytes_per_second": rounded(division.link),
            "pays": division.verdict.pays(),
            "why": why,
        },
    })
}

/// Prices and energies keep the digits that a comparison needs.
fn exact(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn costs(costs: &Costs) -> Value {
    let of = |cost: &PhaseCost| {
        json!({
            "machine_seconds": exact(cost.seconds),
            "price": cost.price.map(exact),
            "watt_hours": cost.watt_hours.map(exact),
        })
    };
    json!({
        "batch": costs.batch,
        "input": of(&costs.input),
        "cached": costs.cached.as_ref().map(of),
        "output": of(&costs.output),
        "request": of(&costs.request),
    })
}

fn choices(choices: &Choices) -> Value {
    let rows = choices.rows.iter().map(|row| {
        json!({
            "machine": row.machine,
            "machines_per_instance": row.count,
            "weights": row.weights.name(),
            "instances": row.fleet.machines,
            "machines": row.cards(),
            "batch": row.fleet.batch,
            "capped_by": row.fleet.cap.words(),
            "ttft_ms": ms(row.fleet.ttft),
            "tpot_ms": ms(row.fleet.tpot),
            "price_per_hour": row.price.map(exact),
            "watts": row.watts,
        })
    });
    let unmet = choices.unmet.iter().map(|unmet| {
        json!({
            "target": unmet.target,
            "wanted": ms(unmet.wanted),
            "best": ms(unmet.best),
            "times": rounded(unmet.best / unmet.wanted),
            "on": unmet.on,
        })
    });
    json!({
        "ordered_by": if choices.is_priced { "price_per_hour" } else { "machines" },
        "tried": choices.tried,
        "fit": choices.fit,
        "left_off": choices.left_off,
        "rows": rows.collect::<Vec<_>>(),
        "unmet": unmet.collect::<Vec<_>>(),
        "words": choices.words(),
    })
}
