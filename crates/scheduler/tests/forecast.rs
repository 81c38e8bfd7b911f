//! Predicted TTFT against what then happens on a simulated machine of 10 ms for a pass of up to 100 rows and 0.1 ms for
//! each row more.

use protocol::{Nanos, Priority, RequestId, Targets};
use scheduler::cost::Terms;
use scheduler::{AdmissionForecast, CostModel, IncomingRequest, Limits, Request, Scheduler};
use testing::plans;

const MS: u64 = 1_000_000;

fn forecast(scheduler: &Scheduler, now: Nanos) -> AdmissionForecast {
    let mut forecast = AdmissionForecast::default();
    scheduler.forecast_into(now, &mut forecast);
    forecast
}

struct Engine {
    scheduler: Scheduler,
    machine: CostModel,
    now: Nanos,
}

/// One that asks: prompt tokens, priority, targets in milliseconds.
#[derive(Clone, Copy)]
struct Asks {
    prompt: usize,
    priority: i32,
    ttft: Option<u64>,
    tpot: Option<u64>,
}

const fn asks(prompt: usize) -> Asks {
    Asks { prompt, priority: 0, ttft: None, tpot: None }
}

impl Engine {
    fn new(terms: Terms, max_num_seqs: usize) -> Engine {
        let machine = plans::machine_of(&plans::KNOTS, terms);
        let limits = Limits {
            max_num_seqs,
            max_num_batched_tokens: 1024,
            max_prefill_chunk: 1024,
            enable_prefix_caching: false,
            ..plans::limits()
        };
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_cost_model(Some(machine.clone()));
        Engine { scheduler, machine, now: Nanos(0) }
    }

    fn admit(&mut self, id: u64, asks: Asks) {
        let target = |ms: Option<u64>| ms.map(|ms| Nanos(ms * MS));
        let request = Request {
            priority: Priority(asks.priority),
            use_prefix_cache: false,
            targets: Targets { ttft: target(asks.ttft), tpot: target(asks.tpot) },
            arrived: self.now,
            ..plans::request(id, vec![id as u32; asks.prompt])
        };
        self.scheduler.admit(request).expect("there is room");
    }

    fn step(&mut self) {
        let step = self.scheduler.schedule(self.now);
        self.now.0 += self.machine.step_time(&self.scheduler.planned().work).0;
        self.scheduler.complete(plans::answer(&step, 7), self.now);
    }

    fn has_answered(&self, id: u64) -> bool {
        self.scheduler.sequences().any(|seq| seq.request_id() == RequestId(id) && seq.num_generated() > 0)
    }
}

#[test]
fn what_is_said_is_what_happens() {
    let reading = Asks { tpot: Some(40), ..asks(50) };
    let urgent = Asks { ttft: Some(100), ..asks(500) };
    let batch = Asks { priority: 1, ..asks(4000) };
    // Decoding, waiting and new requests.
    type Case = (&'static str, Vec<Asks>, Vec<Asks>, Asks);
    let cases: Vec<Case> = vec![
        ("idle", vec![], vec![], asks(900)),
        ("a short one on an idle machine", vec![], vec![], asks(20)),
        ("three wait", vec![], vec![asks(1000); 3], asks(500)),
        ("a stream has a target, so prompts get 30 ms of 40", vec![reading], vec![asks(2000)], asks(500)),
        ("ten streams", vec![reading; 10], vec![asks(2000), asks(700)], asks(300)),
        ("the newcomer is due first", vec![], vec![asks(3000)], urgent),
        ("batch work lets it pass", vec![], vec![batch, batch], asks(800)),
        ("a long prompt of attention", vec![reading], vec![asks(3000)], asks(6000)),
    ];
    for (name, decoding, waiting, newcomer) in cases {
        let mut engine = Engine::new(Terms { pair: 1e-8, key: 1e-7, ..Terms::default() }, 64);
        let mut ids = 0..;
        for asks in decoding {
            let id = ids.next().expect("no end");
            engine.admit(id, asks);
            while !engine.has_answered(id) {
                engine.step();
            }
        }
        for asks in waiting {
            engine.admit(ids.next().expect("no end"), asks);
        }
        let new = IncomingRequest {
            prompt_tokens: newcomer.prompt,
            cached_tokens: 0,
            priority: Priority(newcomer.priority),
            ttft: newcomer.ttft.map(|ms| Nanos(ms * MS)),
        };
        let said = forecast(&engine.scheduler, engine.now).ttft(&new, engine.now, Nanos(0)).as_secs_f64();
        let (came, id) = (engine.now, ids.next().expect("no end"));
        engine.admit(id, newcomer);
        while !engine.has_answered(id) {
            engine.step();
        }
        let took = engine.now.since(came).as_secs_f64();
        assert!((said / took - 1.0).abs() < 0.25, "{name}: said {said}, took {took}");
    }
}

#[test]
fn the_queue_moves_between_snapshots() {
    let mut engine = Engine::new(Terms::default(), 64);
    engine.admit(1, asks(5000));
    let mut forecast = forecast(&engine.scheduler, Nanos(0));
    let new = IncomingRequest { prompt_tokens: 1000, cached_tokens: 0, priority: Priority(0), ttft: None };
    let ms = |forecast: &AdmissionForecast, at: u64| forecast.ttft(&new, Nanos(at * MS), Nanos(0)).0 / MS;
    let (now, later, much_later) = (ms(&forecast, 0), ms(&forecast, 200), ms(&forecast, 10_000));
    assert_eq!((later, much_later), (now - 200, forecast.alone(&new).0 / MS));
    // One that was submitted since stands in line too.
    forecast.add(&new, Nanos(0));
    let with_it = ms(&forecast, 0);
    assert!(with_it > now + 90, "{with_it} {now}");
}

#[test]
fn what_the_cache_has_takes_no_time() {
    let engine = Engine::new(Terms::default(), 64);
    let forecast = forecast(&engine.scheduler, Nanos(0));
    let alone = |prompt_tokens, cached_tokens| {
        let new = IncomingRequest { prompt_tokens, cached_tokens, priority: Priority(0), ttft: None };
        forecast.alone(&new).as_secs_f64()
    };
    let (all, rest) = (alone(2000, 0), alone(2000, 1500));
    assert!(rest >= alone(500, 0) && rest < all / 2.0, "it computes a quarter of it: {rest} of {all}");
    assert_eq!(alone(2000, 2000), alone(2000, 1999), "the last token is always computed");
    assert_eq!(alone(2000, 9000), alone(2000, 1999), "cached tokens are capped at the prompt");
}

#[test]
fn where_seats_are_short_a_request_must_end_first() {
    let mut engine = Engine::new(Terms::default(), 1);
    engine.admit(1, asks(10));
    engine.step();
    engine.admit(2, asks(10));
    let new = IncomingRequest { prompt_tokens: 10, cached_tokens: 0, priority: Priority(0), ttft: None };
    let forecast = forecast(&engine.scheduler, engine.now);
    let said = forecast.ttft(&new, engine.now, Nanos(500 * MS));
    assert!(said.0 >= 1000 * MS, "the one that runs and the one that waits end before it: {said:?}");
}

#[test]
fn the_backlog_is_all_that_is_not_computed() {
    let mut engine = Engine::new(Terms::default(), 64);
    let backlog = |engine: &Engine| forecast(&engine.scheduler, engine.now).backlog().as_secs_f64();
    assert_eq!(backlog(&engine), 0.0);
    engine.admit(1, asks(3000));
    engine.admit(2, Asks { priority: 5, ..asks(2000) });
    let all = backlog(&engine);
    assert!((all / 0.51 - 1.0).abs() < 0.05, "5000 tokens at about 0.1 ms each: {all}");
    engine.step();
    let rest = backlog(&engine);
    assert!((rest / all - 3976.0 / 5000.0).abs() < 0.01, "1024 of them are done: {rest} of {all}");
    while !(engine.has_answered(1) && engine.has_answered(2)) {
        engine.step();
    }
    assert_eq!(backlog(&engine), 0.0);
    // Without a cost model nothing is predicted.
    engine.admit(3, asks(1000));
    engine.scheduler.set_cost_model(None);
    assert_eq!(backlog(&engine), 0.0);
}
