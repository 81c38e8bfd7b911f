//! Snapshots of the engine between two steps. No reader of them is waited for.

use std::sync::{Mutex, PoisonError};

use scheduler::{AdmissionForecast, Nanos, Sequence};

use super::EngineCore;
use crate::live::{InScene, KvMap, MAP_EVERY, SCENE_EVERY, Scene};

impl EngineCore {
    /// Publishes the prefill queue to other threads.
    pub(crate) fn look_ahead(&self, now: Nanos, forecast: &Mutex<AdmissionForecast>) {
        if self.scheduler.cost_model().is_some() {
            let mut forecast = forecast.lock().unwrap_or_else(PoisonError::into_inner);
            self.scheduler.forecast_into(now, &mut forecast);
        }
    }

    /// Publishes waiting and running requests, unless that was done a moment ago; not while a reader holds the scene.
    pub(crate) fn show(&self, now: Nanos, scene: &Mutex<Scene>) {
        if let Ok(mut scene) = scene.try_lock()
            && now.since(scene.at) >= SCENE_EVERY
        {
            self.fill(now, &mut scene);
        }
    }

    /// The same, whatever it takes: before the engine's thread waits.
    pub(crate) fn show_now(&self, now: Nanos, scene: &Mutex<Scene>) {
        self.fill(now, &mut scene.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Publishes what the blocks of the cache are used for, unless that was done a moment ago or a reader holds the
    /// map. A client that holds the engine sees every step (`always`), so it is worth waiting for a reader's copy:
    /// there is no next step to show it with.
    pub(crate) fn show_map(&self, now: Nanos, always: bool, map: &Mutex<KvMap>) {
        let shown = if always { Ok(map.lock().unwrap_or_else(PoisonError::into_inner)) } else { map.try_lock() };
        let Ok(mut map) = shown else { return };
        if always || now.since(map.at) >= MAP_EVERY {
            (map.at, map.version) = (now, map.version + 1);
            map.step = self.journal.log().recent.num_steps().saturating_sub(1);
            self.scheduler.block_uses_into(&mut map.uses);
        }
    }

    fn fill(&self, now: Nanos, scene: &mut Scene) {
        let log = self.journal.log();
        let one = |sequence: &Sequence| {
            let request = sequence.request_id();
            let account = log.accounts.of(request)?;
            let waits = sequence.block_table().is_empty();
            let answer = account.answers().nth(sequence.answer())?;
            Some(InScene {
                request,
                answer: sequence.answer(),
                waits,
                since: if waits { account.arrived } else { account.first_scheduled.unwrap_or(account.arrived) },
                prompt_tokens: account.prompt_tokens,
                computed: sequence.num_computed(),
                generated: answer.tokens,
            })
        };
        scene.fill(now, self.scheduler.sequences().filter_map(one));
    }
}
