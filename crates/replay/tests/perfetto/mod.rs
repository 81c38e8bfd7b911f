//! What a reader of traces relies on (Trace Event Format; Perfetto's importer): slices of a lane nest, flows have both
//! ends inside slices and go forward, every lane has a name, every id is known.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What a trace shows.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Names of lanes of requests.
    pub(crate) lanes: Vec<String>,
    /// Steps on the engine's lane.
    pub(crate) steps: usize,
    /// Tokens on all lanes.
    pub(crate) tokens: u64,
    /// Arrows: lanes of cause and effect, milliseconds.
    pub(crate) arrows: Vec<(String, String, f64)>,
    pub(crate) slices: BTreeSet<String>,
}

type Lane = (u64, u64);

/// Checks a trace and says what is in it.
pub(crate) fn check(trace: &Value) -> Shown {
    assert_eq!(trace["displayTimeUnit"], "ms");
    let events = trace["traceEvents"].as_array().expect("events");
    let lane = |event: &Value| (event["pid"].as_u64().expect("pid"), event["tid"].as_u64().expect("tid"));
    let time = |event: &Value, key: &str| {
        let micros = event[key].as_f64().unwrap_or_else(|| panic!("no {key} in {event}"));
        assert!(micros >= 0.0, "{event}");
        (micros * 1e3).round() as u64
    };
    let (mut names, mut slices) = (BTreeMap::<Lane, String>::new(), BTreeMap::<Lane, Vec<(u64, u64)>>::new());
    let mut flows = BTreeMap::<u64, Vec<(String, Lane, u64, f64)>>::new();
    let mut shown = Shown::default();
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap_or_else(|| panic!("no {key} in {event}")).to_owned();
        match text("ph").as_str() {
            "M" if event["name"] == "thread_name" => {
                let name = event["args"]["name"].as_str().expect("a name").to_owned();
                assert_eq!(names.insert(lane(event), name), None, "a lane has one name");
            }
            "M" => {}
            "C" => assert!(event["args"].as_object().expect("values").values().all(Value::is_u64), "{event}"),
            "X" => {
                let from = time(event, "ts");
                slices.entry(lane(event)).or_default().push((from, from + time(event, "dur")));
                match lane(event).0 {
                    1 => shown.steps += 1,
                    _ => {
                        shown.tokens +=
                            event["args"]["tokens"].as_u64().filter(|_| event["args"]["step"].is_u64()).unwrap_or(0)
                    }
                }
                shown.slices.insert(text("name"));
            }
            ph @ ("s" | "f") => {
                assert!(ph == "s" || event["bp"] == "e", "an end binds to the slice around it: {event}");
                let ms = event["args"]["ms"].as_f64().expect("how much");
                flows.entry(event["id"].as_u64().expect("id")).or_default().push((
                    ph.to_owned(),
                    lane(event),
                    time(event, "ts"),
                    ms,
                ));
            }
            other => panic!("{other}: {event}"),
        }
    }
    for (lane, slices) in &mut slices {
        assert!(names.contains_key(lane), "{lane:?} has no name");
        // Readers sort by time and leave what is equal as it stands in the file.
        slices.sort_by_key(|&(from, _)| from);
        let mut around: Vec<(u64, u64)> = Vec::new();
        for &(from, to) in slices.iter() {
            around.retain(|&(_, end)| end > from);
            if let Some(&(_, end)) = around.last() {
                assert!(to <= end, "{from}..{to} leaves the slice around it on {lane:?}, which ends at {end}");
            }
            around.push((from, to));
        }
    }
    for (id, ends) in flows {
        let [(begin, cause, at, ms), (end, effect, then, _)] = &ends[..] else {
            panic!("flow {id} has {} ends", ends.len())
        };
        assert_eq!((begin.as_str(), end.as_str()), ("s", "f"), "flow {id}");
        assert!(at <= then, "flow {id} goes back in time");
        for (lane, at) in [(cause, at), (effect, then)] {
            // The request itself, its phase, and the rows: the innermost is what an arrow points at.
            let around = slices[lane].iter().filter(|(from, to)| (from..=to).contains(&at)).count();
            assert!(around >= 3, "flow {id}: nothing was computed on {lane:?} at {at}");
        }
        assert_ne!(cause, effect, "flow {id}: no request delays itself");
        shown.arrows.push((names[cause].clone(), names[effect].clone(), *ms));
    }
    shown.lanes = names.into_iter().filter(|((pid, _), _)| *pid == 2).map(|(_, name)| name).collect();
    shown
}
