//! A watcher of a running engine: pointers out of the log, copies of the scene and the map (`live.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use scheduler::RequestId;

use crate::away::Away;
use crate::command::Command;
use crate::history::Second;
use crate::live::{KvMap, LoggedStep, Percentiles, Place, Scene, percentiles, with_those_who_wait};
use crate::recent::Ended;
use crate::serve::Watching;
use crate::{Engine, Inner};

/// A watcher. While one exists, scenes are made, and maps of the cache if one wants them.
pub(crate) struct Watch {
    engine: Arc<Inner>,
    wants_map: bool,
}

impl Engine {
    pub(crate) fn begin_watch(&self, wants_map: bool) -> Watch {
        let shared = &self.0.shared;
        shared.watchers.fetch_add(1, Ordering::Relaxed);
        shared.map_watchers.fetch_add(usize::from(wants_map), Ordering::Relaxed);
        // One that has nothing to do shows nothing of itself.
        let _ = self.0.commands.send(Command::Show);
        Watch { engine: self.0.clone(), wants_map }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let shared = &self.engine.shared;
        shared.watchers.fetch_sub(1, Ordering::Relaxed);
        shared.map_watchers.fetch_sub(usize::from(self.wants_map), Ordering::Relaxed);
    }
}

impl Watching for Watch {
    fn newest(&self) -> Place {
        let log = self.engine.log.lock().unwrap_or_else(PoisonError::into_inner);
        Place { step: log.recent.num_steps(), end: log.recent.num_ended(), away: log.accounts.aways.num_changes() }
    }

    fn read(&self, place: &mut Place, most: usize, steps: &mut Vec<LoggedStep>, ended: &mut Vec<Ended>) -> u64 {
        let log = self.engine.log.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, record) in log.recent.steps_from(place.step).take(most) {
            steps.push(LoggedStep { number, record: record.clone() });
        }
        place.step = steps.last().map_or(log.recent.num_steps().min(place.step), |step| step.number + 1);
        ended.extend(log.recent.ended_from(place.end));
        place.end = log.recent.num_ended();
        log.recent.num_steps() - place.step
    }

    fn aways(&self, place: &mut Place) -> Vec<(RequestId, Away)> {
        let log = self.engine.log.lock().unwrap_or_else(PoisonError::into_inner);
        let aways = &log.accounts.aways;
        let changed = aways.changed_after(place.away);
        place.away = aways.num_changes();
        changed
    }

    fn scene_into(&self, scene: &mut Scene) {
        scene.clone_from(&self.engine.shared.scene.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn map_into(&self, map: &mut KvMap) -> bool {
        let newest = self.engine.shared.map.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = newest.version != map.version;
        if is_new {
            (map.step, map.at, map.version) = (newest.step, newest.at, newest.version);
            map.uses.clone_from(&newest.uses);
        }
        is_new
    }

    fn seconds(&self) -> Vec<Second> {
        let now = self.engine.clock.now();
        let log = self.engine.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.minutes.seconds(now)
    }

    fn percentiles(&self) -> [Option<Percentiles>; 2] {
        let log = self.engine.log.lock().unwrap_or_else(PoisonError::into_inner);
        let (ttfts, gaps) = (log.recent.ttfts.values(), log.recent.gaps.values());
        let open: Vec<_> = log.accounts.first_tokens().collect();
        drop(log);
        [percentiles(with_those_who_wait(ttfts, &open, self.engine.clock.now())), percentiles(gaps)]
    }
}
