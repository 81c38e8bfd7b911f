//! The same tables as Markdown, for a book: a section for each API, its routes, and what their bodies may hold.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Answer, Body, Operation};
use crate::hints::Hint;
use crate::shape::{Kind, Shape};

/// The reference of these operations, in their order. `head`: what stands first.
pub fn markdown(head: &str, operations: &[Operation]) -> String {
    let mut text = head.to_owned();
    let mut apis: Vec<&str> = Vec::new();
    apis.extend(operations.iter().map(|operation| operation.api.name));
    apis.dedup();
    let mut told = BTreeSet::new();
    for (at, api) in apis.iter().enumerate().filter(|(at, api)| !apis[..*at].contains(api)) {
        let _ = writeln!(text, "{}## {api}\n", if at == 0 { "" } else { "\n" });
        let own: Vec<&Operation> = operations.iter().filter(|operation| operation.api.name == *api).collect();
        text.push_str("| route | | body | answer |\n| --- | --- | --- | --- |\n");
        own.iter().for_each(|operation| text.push_str(&route(operation)));
        let asked = own.iter().filter(|operation| !operation.query.is_empty());
        let rows: String = asked.flat_map(|operation| queries(operation)).collect();
        if !rows.is_empty() {
            let _ = write!(text, "\n| in the URL of | name | a value | |\n| --- | --- | --- | --- |\n{rows}");
        }
        for operation in own {
            match operation.body {
                Body::Json(shapes, hints) => {
                    shapes.iter().for_each(|shape| tell(&mut text, shape, hints, &mut told));
                }
                Body::List(shape) => tell(&mut text, shape, &[], &mut told),
                Body::None | Body::AnyJson | Body::File => {}
            }
        }
    }
    text
}

fn route(operation: &Operation) -> String {
    let link = |shape: &Shape| format!("[{}](#{})", shape.name, shape.name.to_lowercase());
    let body = match operation.body {
        Body::None => String::new(),
        Body::Json(shapes, _) => shapes.iter().map(|shape| link(shape)).collect::<Vec<_>>().join(" or "),
        Body::List(shape) => format!("a list of {}", link(shape)),
        Body::AnyJson => "a model's `config.json`".to_owned(),
        Body::File => "a file, as a form".to_owned(),
    };
    let answer = match operation.answer {
        Answer::Json(name) => name.to_owned(),
        Answer::Streamed(name, kind) => format!("{name}, or `{}`", kind.split(';').next().unwrap_or(kind)),
        Answer::Other(kind) => format!("`{}`", kind.split(';').next().unwrap_or(kind)),
        Answer::Either(kinds) => kinds
            .iter()
            .map(|kind| format!("`{}`", kind.split(';').next().unwrap_or(kind)))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let about = cell(operation.about);
    format!("| `{} {}` | {about} | {body} | {answer} |\n", operation.method, operation.path.replace("{*", "{"))
}

fn queries(operation: &Operation) -> Vec<String> {
    let row = |at: usize| {
        let parameter = &operation.query[at];
        let route = if at == 0 { format!("`{}`", operation.path.replace("{*", "{")) } else { String::new() };
        format!(
            "| {route} | `{}` | {} | {} |\n",
            parameter.name,
            cell(&parameter.kind.in_words()),
            cell(parameter.about)
        )
    };
    (0..operation.query.len()).map(row).collect()
}

/// A body, and the objects in it, each once.
fn tell(text: &mut String, shape: &'static Shape, hints: &[Hint], told: &mut BTreeSet<&'static str>) {
    if !told.insert(shape.name) {
        return;
    }
    let _ = writeln!(text, "\n### {}\n\n| field | a value | |\n| --- | --- | --- |", shape.name);
    let mut inner = Vec::new();
    for field in shape.fields() {
        let value = match field.kind {
            Kind::Missing => "is refused".to_owned(),
            Kind::Only(value) => format!("only `{}`", value.json()),
            kind => kind.in_words(),
        };
        let is_required = if field.is_required { ", required" } else { "" };
        let _ = writeln!(text, "| `{}` | {}{is_required} | {} |", field.name, cell(&value), cell(field.about));
        objects(field.kind, &mut inner);
    }
    for hint in hints.iter().filter(|hint| !hint.field.contains(['.', '['])) {
        let _ = writeln!(text, "| `{}` | taken, and changes no token | {} |", hint.field, cell(hint.meaning));
    }
    inner.into_iter().for_each(|shape| tell(text, shape, &[], told));
}

fn objects(kind: Kind, found: &mut Vec<&'static Shape>) {
    match kind {
        Kind::Object(shape) | Kind::Settings(shape) => found.push(shape),
        Kind::List(of) => objects(*of, found),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| objects(*kind, found)),
        _ => {}
    }
}

/// In a table a bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
