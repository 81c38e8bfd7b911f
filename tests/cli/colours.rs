//! Prefill is orange and decode blue in every picture: of the commands, of the page, of the board and of the terminal.

use std::fs;

use figures::Colour;
use serde_json::Value;
use testing::Scratch;
use tests::{run, text, twostroke};

/// The colours of a chart's lines in their order: those of the data, which are thinner than the legend's.
fn lines(svg: &str) -> Vec<&str> {
    let data = svg.lines().filter(|line| line.starts_with("<path") && line.contains("stroke-width=\"1.5\""));
    data.filter_map(|line| line.split("stroke=\"").nth(1)?.split('"').next()).collect()
}

#[test]
fn pictures_of_the_commands() {
    let directory = Scratch::new("colours");
    let path = |name: &str| directory.join(name).display().to_string();
    let plan = path("plan.svg");
    let ran = run(&mut twostroke(&["plan", "-m", "7b", "--machine", "a100", "--svg", &plan]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let svg = fs::read_to_string(&plan).expect("it was written");
    assert_eq!(lines(&svg)[..2], [Colour::Prefill.hex(), Colour::Decode.hex()], "prefill, decode: {svg}");
    let charts = path("charts");
    let ran = run(&mut twostroke(&["sim", "--requests", "20", "--svg", &charts]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let svg = |name: &str| fs::read_to_string(directory.join("charts").join(name)).expect("it was written");
    assert_eq!(
        lines(&svg("load.svg"))[..2],
        [Colour::Decode.hex(), Colour::Prefill.hex()],
        "decode rows, prefill rows"
    );
    assert_eq!(lines(&svg("ttft.svg")), [Colour::Prefill.hex()]);
    assert_eq!(lines(&svg("tpot.svg"))[0], Colour::Decode.hex());
}

#[test]
fn the_page_has_the_same() {
    let style = text("web/src/style.css").expect("the style sheet exists");
    for (name, colour) in [
        ("prefill", Colour::Prefill),
        ("decode", Colour::Decode),
        ("late", Colour::Late),
        ("cached", Colour::Cached),
        ("ink", Colour::Ink),
        ("quiet", Colour::Limit),
    ] {
        let first = style.lines().find_map(|line| line.trim().strip_prefix(&format!("--{name}: ")));
        assert_eq!(first, Some(format!("{};", colour.hex()).as_str()), "--{name} of the light theme");
    }
}

#[test]
fn the_board_has_the_same() {
    let board = text("deploy/grafana/dashboards/twostroke.json").expect("the board exists");
    let board: Value = serde_json::from_str(&board).expect("JSON");
    let panels = board["panels"].as_array().expect("panels").iter();
    let overrides = panels.flat_map(|panel| panel["fieldConfig"]["overrides"].as_array().into_iter().flatten());
    let mut seen = 0;
    for rule in overrides {
        let name = rule["matcher"]["options"].as_str().unwrap_or_default();
        let wanted = match name {
            "prefill" | "own_prefill" => Colour::Prefill.hex(),
            "own_decode" => Colour::Decode.hex(),
            "waiting" | "target" => Colour::Late.hex(),
            "running" => Colour::Limit.hex(),
            // Another request's work: the phase's colour, paler.
            "other_prefill" => "#f2b880",
            _ => continue,
        };
        let properties = rule["properties"].as_array().expect("properties").iter();
        let colours: Vec<&Value> = properties
            .filter(|property| property["id"] == "color")
            .map(|property| &property["value"]["fixedColor"])
            .collect();
        assert_eq!(colours, [wanted], "{name}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen} lines of the board");
}
