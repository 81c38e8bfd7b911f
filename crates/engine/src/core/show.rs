//! Snapshots of the engine between two steps. No reader of them is waited for.

use std::sync::{Mutex, PoisonError};

use observe::{KvMap, MAP_EVERY, RequestSnapshot, SNAPSHOT_EVERY, SnapshotRow};
use protocol::Nanos;
use scheduler::{AdmissionForecast, Sequence};

use super::EngineCore;

impl EngineCore {
    /// Publishes the prefill queue to other threads.
    pub(crate) fn look_ahead(&self, now: Nanos, forecast: &Mutex<AdmissionForecast>) {
        // A rerun makes way for whatever comes.
        if !self.is_rerun() {
            let mut forecast = forecast.lock().unwrap_or_else(PoisonError::into_inner);
            match self.scheduler.cost_model() {
                Some(_) => self.scheduler.forecast_into(now, &mut forecast),
                // After a move nothing is known of the device.
                None => *forecast = AdmissionForecast::default(),
            }
        }
    }

    /// Publishes waiting and running requests, unless that was done a moment ago; not while a reader holds the snapshot.
    pub(crate) fn show(&self, now: Nanos, snapshot: &Mutex<RequestSnapshot>) {
        if let Ok(mut snapshot) = snapshot.try_lock()
            && now.since(snapshot.at) >= SNAPSHOT_EVERY
        {
            self.fill_snapshot(now, &mut snapshot);
        }
    }

    /// The same, whatever it takes: before the engine's thread waits.
    pub(crate) fn show_now(&self, now: Nanos, snapshot: &Mutex<RequestSnapshot>) {
        self.fill_snapshot(now, &mut snapshot.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Publishes what the blocks of the cache are used for, unless that was done a moment ago or a reader holds the
    /// map. A client that holds the engine sees every step (`always`), so it is worth waiting for a reader's copy:
    /// there is no next step to show it with.
    pub(crate) fn show_map(&self, now: Nanos, always: bool, map: &Mutex<KvMap>) {
        let shown = if always { Ok(map.lock().unwrap_or_else(PoisonError::into_inner)) } else { map.try_lock() };
        let Ok(mut map) = shown else { return };
        if always || now.since(map.at) >= MAP_EVERY {
            (map.at, map.version) = (now, map.version + 1);
            map.step = self.journal.views().recent.num_steps().saturating_sub(1);
            self.scheduler.block_uses_into(&mut map.uses);
        }
    }

    fn fill_snapshot(&self, now: Nanos, snapshot: &mut RequestSnapshot) {
        let views = self.journal.views();
        let one = |sequence: &Sequence| {
            let request = sequence.request_id();
            let account = views.accounts.of(request)?;
            let waits = sequence.block_table().is_empty();
            let answer = account.answers().nth(sequence.answer())?;
            Some(SnapshotRow {
                request,
                answer: sequence.answer(),
                waits,
                since: if waits { account.arrived } else { account.first_scheduled.unwrap_or(account.arrived) },
                prompt_tokens: account.prompt_tokens,
                computed: sequence.num_computed(),
                generated: answer.tokens,
            })
        };
        snapshot.fill(now, self.scheduler.sequences().filter_map(one));
    }
}
