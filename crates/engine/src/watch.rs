//! A watcher of a running engine: pointers out of the log, copies of the snapshot and the map (`live.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use observe::{
    Ended, KvMap, LogCursor, LoggedStep, Percentiles, RemotePrefillTrace, RequestSnapshot, SecondStats, percentiles,
    with_waiting_requests,
};
use protocol::RequestId;

use crate::command::Command;
use crate::serve::Subscription;
use crate::{Engine, Inner};

/// A watcher. While one exists, scenes are made, and maps of the cache if one wants them.
pub(crate) struct Watch {
    engine: Arc<Inner>,
    wants_map: bool,
}

impl Engine {
    pub(crate) fn begin_watch(&self, wants_map: bool) -> Watch {
        let status = &self.0.status;
        status.watchers.fetch_add(1, Ordering::Relaxed);
        status.map_watchers.fetch_add(usize::from(wants_map), Ordering::Relaxed);
        // One that has nothing to do shows nothing of itself.
        let _ = self.0.commands.send(Command::Show);
        Watch { engine: self.0.clone(), wants_map }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let status = &self.engine.status;
        status.watchers.fetch_sub(1, Ordering::Relaxed);
        status.map_watchers.fetch_sub(usize::from(self.wants_map), Ordering::Relaxed);
    }
}

impl Subscription for Watch {
    fn newest(&self) -> LogCursor {
        let views = self.engine.views.lock().unwrap_or_else(PoisonError::into_inner);
        LogCursor {
            step: views.recent.num_steps(),
            end: views.recent.num_ended(),
            remote_prefill: views.accounts.remote_prefills.num_changes(),
        }
    }

    fn read(&self, cursor: &mut LogCursor, most: usize, steps: &mut Vec<LoggedStep>, ended: &mut Vec<Ended>) -> u64 {
        let views = self.engine.views.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, record) in views.recent.steps_from(cursor.step).take(most) {
            steps.push(LoggedStep { number, record: record.clone() });
        }
        cursor.step = steps.last().map_or(views.recent.num_steps().min(cursor.step), |step| step.number + 1);
        ended.extend(views.recent.ended_from(cursor.end));
        cursor.end = views.recent.num_ended();
        views.recent.num_steps() - cursor.step
    }

    fn remote_prefills(&self, cursor: &mut LogCursor) -> Vec<(RequestId, RemotePrefillTrace)> {
        let views = self.engine.views.lock().unwrap_or_else(PoisonError::into_inner);
        let traces = &views.accounts.remote_prefills;
        let changed = traces.changed_after(cursor.remote_prefill);
        cursor.remote_prefill = traces.num_changes();
        changed
    }

    fn snapshot_into(&self, snapshot: &mut RequestSnapshot) {
        snapshot.clone_from(&self.engine.status.snapshot.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn map_into(&self, map: &mut KvMap) -> bool {
        let newest = self.engine.status.map.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = newest.version != map.version;
        if is_new {
            (map.step, map.at, map.version) = (newest.step, newest.at, newest.version);
            map.uses.clone_from(&newest.uses);
        }
        is_new
    }

    fn seconds(&self) -> Vec<SecondStats> {
        let now = self.engine.clock.now();
        let views = self.engine.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.minutes.seconds(now)
    }

    fn percentiles(&self) -> [Option<Percentiles>; 2] {
        let views = self.engine.views.lock().unwrap_or_else(PoisonError::into_inner);
        let (ttfts, gaps) = (views.recent.ttfts.values(), views.recent.gaps.values());
        let open: Vec<_> = views.accounts.first_tokens().collect();
        drop(views);
        [percentiles(with_waiting_requests(ttfts, &open, self.engine.clock.now())), percentiles(gaps)]
    }
}
