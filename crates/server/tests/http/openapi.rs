//! The document of the API: it is there, it is this server's, and every field that it names is read, with its type.

use serde_json::{Map, Value, json};
use server::ServerOptions;

use crate::host::{Host, local_server, small_engine};

/// The schema that is meant, where there is but a name.
fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    let named = schema["$ref"].as_str().map(|name| document.pointer(&name[1..]).expect(name));
    named.unwrap_or(schema)
}

/// The JSON bodies of the document: where each is sent, and its schema.
fn bodies(document: &Value) -> Vec<(&str, &Value)> {
    let mut bodies = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let several = schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
        let several = several.iter().map(|schema| resolved(document, schema));
        bodies.extend(several.filter(|schema| schema["properties"].is_object()).map(|schema| (path.as_str(), schema)));
    }
    bodies
}

/// The alternatives of a schema without `null`.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let any = schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
    let any = any.iter().flat_map(|one| if one == schema { vec![one] } else { alternatives(one) });
    any.filter(|one| one["type"] != "null").collect()
}

/// A value that the schema allows, seen from outside.
fn fit(schema: &Value) -> Value {
    let Some(&one) = alternatives(schema).first() else { return Value::Null };
    match one["type"].as_str() {
        _ if one.get("const").is_some() => one["const"].clone(),
        Some("string") => one["enum"].get(0).cloned().unwrap_or_else(|| "x".into()),
        Some("boolean") => true.into(),
        Some("integer" | "number") => 1.into(),
        Some("array") => json!([fit(&one["items"])]),
        Some("object") => {
            let required = one["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.map(|name| (name.to_owned(), fit(&one["properties"][name]))).collect::<Map<_, _>>().into()
        }
        _ => json!({}),
    }
}

/// A value that it does not allow, if there is one.
fn unfit(schema: &Value) -> Option<Value> {
    let allowed = alternatives(schema);
    let is_allowed = |value: &Value| {
        allowed.iter().any(|one| match one["type"].as_str() {
            _ if one.get("const").is_some() => one["const"] == *value,
            Some("string") => value.is_string() && one.get("enum").is_none(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64(),
            Some("number") => value.is_number(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            // Of several types, or of any.
            _ => true,
        })
    };
    [json!(1.5), json!("no word"), json!([]), json!({}), json!(false)].into_iter().find(|value| !is_allowed(value))
}

/// What must be there, and this.
fn with(schema: &Value, name: &str, value: Value) -> Value {
    let mut body = fit(schema);
    body[name] = value;
    // An answer of a token is enough.
    for limit in ["max_tokens", "max_output_tokens", "n_predict"] {
        if name != limit && schema["properties"].get(limit).is_some() {
            body[limit] = 1.into();
        }
    }
    body
}

#[test]
fn every_field_of_the_document_is_known_and_has_its_type() {
    let batches = testing::Scratch::new("openapi");
    let options =
        ServerOptions { runtime_adapters: true, batch_directory: Some(batches.to_path_buf()), ..local_server() };
    let host = Host::with(small_engine(), options);
    let document = host.get("/openapi.json").json();
    let bodies = bodies(&document);
    assert!(bodies.len() > 20, "they are found: {}", bodies.len());
    let mut fields = 0;
    // One is refused before its body is read, unless the operator allows it.
    for (path, schema) in bodies.into_iter().filter(|(path, _)| *path != "/api/pull") {
        for (name, property) in schema["properties"].as_object().unwrap() {
            fields += 1;
            let answer = host.post(path, &with(schema, name, fit(property)));
            assert_ne!(answer.status, 500, "{path} {name}: {}", answer.text());
            let said = answer.text();
            assert!(!said.contains(&format!("'{name}' is not a field")), "{path} {name}: {said}");
            let Some(wrong) = unfit(property) else { continue };
            let answer = host.post(path, &with(schema, name, wrong.clone()));
            assert_eq!(answer.status, 400, "{path} {name} {wrong}: {}", answer.text());
            assert!(answer.text().contains(name.as_str()), "{path} {name} {wrong}: {}", answer.text());
        }
        let mut unknown = fit(schema);
        unknown["no_such_field"] = 1.into();
        let answer = host.post(path, &unknown);
        assert!(answer.status == 400 || answer.status == 403, "{path}: {}", answer.text());
    }
    assert!(fields > 500, "{fields}");
    host.quiet();
    drop(host);
}

#[test]
fn the_document_is_this_servers() {
    let keyless = Host::start();
    let document = keyless.get("/openapi.json").json();
    assert_eq!((&document["openapi"], &document["servers"][0]["url"]), (&json!("3.1.0"), &json!("/")));
    assert_eq!(document.get("security"), None, "no key is asked for");
    let docs = keyless.get("/docs");
    assert_eq!((docs.status, docs.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(docs.text().contains(&format!("<code>{path}</code>")), "{path}");
    }
    assert!(!docs.text().contains("<script"));
    drop(keyless);

    let options = || ServerOptions { api_keys: vec!["sk-a".into()], root_path: "/llm".into(), ..local_server() };
    let keyed = Host::with(small_engine(), options());
    let document = keyed.get("/openapi.json").json();
    assert_eq!(document["servers"][0]["url"], "/llm");
    assert_eq!(document["security"].as_array().map(Vec::len), Some(2));
    assert!(document["paths"]["/live/feed"].is_object());
    assert_eq!(keyed.get("/docs").status, 200);
    drop(keyed);

    // Without a page nothing is open but the health.
    let bare = Host::with(small_engine(), ServerOptions { ui: false, ..options() });
    assert_eq!([bare.get("/openapi.json").status, bare.get("/docs").status], [401, 401]);
}
