//! The document as a page: one file without scripts, that requests nothing.
//!
//! ```text
//! tag
//!   POST /v1/chat/completions   Answer a conversation
//!      example | fields, those of objects within them folded | what it answers
//! ```

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--dim:#888;--mark:#c60}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h2{margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}\
summary{cursor:pointer;padding:.25rem 0}\
code,pre{font:13px/1.5 ui-monospace,monospace}\
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line);border-radius:4px}\
details details{margin-left:1rem}\
.verb{display:inline-block;width:4.5rem;color:var(--mark);font-weight:600}\
.about{color:var(--dim);margin-left:.75rem}\
table{border-collapse:collapse;width:100%}\
td{border-top:1px solid var(--line);padding:.2rem .6rem .2rem 0;vertical-align:top}\
td:first-child{white-space:nowrap}";

/// The page, and what it may load: its own style and nothing else.
pub(super) fn of(document: &Value) -> (String, String) {
    let mut page = String::new();
    write(&mut page, document).expect("a string takes everything");
    let digest = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    );
    (page, policy)
}

fn write(page: &mut String, document: &Value) -> std::fmt::Result {
    let info = &document["info"];
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>twostroke: the API</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\
         <h1>{} {}</h1><p>{}</p><p>For programs: <a href=\"openapi.json\">openapi.json</a>.</p>",
        escaped(&info["title"]),
        escaped(&info["version"]),
        escaped(&info["description"]),
    )?;
    let nothing = Map::new();
    let paths = document["paths"].as_object().unwrap_or(&nothing);
    let mut tags: Vec<&Value> = Vec::new();
    for operation in paths.values().filter_map(Value::as_object).flat_map(Map::values) {
        if !tags.contains(&&operation["tags"][0]) {
            tags.push(&operation["tags"][0]);
        }
    }
    for tag in tags {
        write!(page, "<h2>{}</h2>", escaped(tag))?;
        for (path, methods) in paths {
            let methods = methods.as_object().into_iter().flatten();
            for (method, operation) in methods.filter(|(_, operation)| operation["tags"][0] == *tag) {
                operation_into(page, path, method, operation, document)?;
            }
        }
    }
    page.push_str("</body></html>");
    Ok(())
}

fn operation_into(
    page: &mut String,
    path: &str,
    method: &str,
    operation: &Value,
    document: &Value,
) -> std::fmt::Result {
    let verb = method.to_ascii_uppercase();
    write!(
        page,
        "<details id=\"{}\"><summary><span class=\"verb\">{verb}</span><code>{}</code><span class=\"about\">{}</span></summary>",
        escaped(&operation["operationId"]),
        text(path),
        escaped(&operation["summary"]),
    )?;
    if let Some(parameters) = operation["parameters"].as_array() {
        page.push_str("<table>");
        for parameter in parameters {
            row(page, &parameter["name"], &kind(&parameter["schema"]), &parameter["description"], false)?;
        }
        page.push_str("</table>");
    }
    for (_, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
        let schema = &content["schema"];
        for schema in schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice) {
            page.push_str("<p>Body</p>");
            fields(page, resolved(schema, document))?;
        }
    }
    for (kind_of, content) in operation["responses"]["200"]["content"].as_object().into_iter().flatten() {
        write!(page, "<p>Answer: <code>{}</code></p>", text(kind_of))?;
        fields(page, resolved(&content["schema"], document))?;
    }
    page.push_str("</details>");
    Ok(())
}

/// The schema that is meant, where there is but a name.
fn resolved<'d>(schema: &'d Value, document: &'d Value) -> &'d Value {
    let named = schema["$ref"].as_str().and_then(|name| document.pointer(name.strip_prefix('#')?));
    named.unwrap_or(schema)
}

/// A table of an object's fields; objects within them are folded below it.
fn fields(page: &mut String, schema: &Value) -> std::fmt::Result {
    let Some(properties) = schema["properties"].as_object() else { return Ok(()) };
    let required = schema["required"].as_array();
    page.push_str("<table>");
    for (name, property) in properties {
        let must = required.is_some_and(|names| names.iter().any(|one| *one == **name));
        row(page, &Value::from(name.as_str()), &kind(property), &property["description"], must)?;
    }
    page.push_str("</table>");
    for (name, property) in properties {
        for inner in objects(property) {
            write!(page, "<details><summary><code>{}</code></summary>", text(name))?;
            fields(page, inner)?;
            page.push_str("</details>");
        }
    }
    Ok(())
}

fn row(page: &mut String, name: &Value, kind: &str, about: &Value, must: bool) -> std::fmt::Result {
    let mark = if must { ", required" } else { "" };
    write!(
        page,
        "<tr><td><code>{}</code></td><td>{}{mark}</td><td>{}</td></tr>",
        escaped(name),
        text(kind),
        escaped(about)
    )
}

/// The objects with known fields that a value may be or hold.
fn objects(schema: &Value) -> Vec<&Value> {
    if schema["properties"].is_object() {
        return vec![schema];
    }
    let any = schema["anyOf"].as_array().into_iter().flatten();
    any.chain(schema.get("items")).flat_map(objects).collect()
}

/// A type in words.
fn kind(schema: &Value) -> String {
    if let Some(any) = schema["anyOf"].as_array() {
        let kinds: Vec<String> = any.iter().filter(|one| one["type"] != "null").map(kind).collect();
        return kinds.join(" or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(Value::to_string).collect::<Vec<_>>().join(" | ");
    }
    if let Some(constant) = schema.get("const") {
        return constant.to_string();
    }
    match schema["type"].as_str() {
        Some("array") => match kind(&schema["items"]) {
            of if of.is_empty() => "list".to_owned(),
            of => format!("list of {of}"),
        },
        Some("null") => "not here".to_owned(),
        Some(kind) => kind.to_owned(),
        None => String::new(),
    }
}

fn escaped(value: &Value) -> String {
    text(value.as_str().unwrap_or_default())
}

/// Fit to stand in a page.
fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_document_says_is_text_in_the_page() {
        let document = json!({
            "info": {"title": "a<b", "version": "1", "description": "\"&\""},
            "paths": {"/x": {"post": {
                "operationId": "x",
                "tags": ["<t>"],
                "summary": "s",
                "requestBody": {"content": {"application/json": {"schema": {
                    "properties": {"<f>": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "<d>"}},
                    "required": ["<f>"],
                }}}},
                "responses": {"200": {"content": {}}},
            }}},
        });
        let (page, policy) = of(&document);
        for told in ["a&lt;b", "&quot;&amp;&quot;", "&lt;t&gt;", "&lt;f&gt;", "string, required", "&lt;d&gt;"] {
            assert!(page.contains(told), "{told}");
        }
        assert!(!page.contains("<f>") && !page.contains("<script"));
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"));
    }
}
