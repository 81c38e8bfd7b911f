//! Schemas as zod, pydantic, msgspec, OpenAPI and people write them: what of them is kept to, and what is named.

use grammar::{Rule, fit_schema};
use serde_json::{Value, json};

/// The place that is not kept to, if there is one: advice names it, strict refuses it.
fn check(name: &str, schema: &Value, place: Option<&str>) {
    let fitted = fit_schema(schema, false).unwrap_or_else(|misfit| panic!("{name}: {misfit:?}"));
    let open: Vec<&str> = fitted.open.iter().map(String::as_str).collect();
    assert_eq!(open, Vec::from_iter(place), "{name}: {}", fitted.schema);
    match (fit_schema(schema, true), place) {
        (Ok(strict), None) => assert_eq!(strict.schema, fitted.schema, "{name}"),
        (Err(misfit), Some(place)) => assert_eq!(misfit.place, place, "{name}: {misfit}"),
        (got, _) => panic!("{name}: {got:?}"),
    }
    // What was fitted stays as it is, and all of it is kept to.
    let again = fit_schema(&fitted.schema, true).unwrap_or_else(|misfit| panic!("{name}: again {misfit:?}"));
    assert_eq!(again.open, [""; 0], "{name}");
    let _ = Rule::JsonSchema(again.schema);
}

fn of(property: Value) -> Value {
    json!({"type": "object", "properties": {"m": property}, "required": ["m"], "additionalProperties": false})
}

#[test]
fn what_says_nothing_or_has_an_equal_is_kept_to() {
    let text = json!({"type": "string"});
    for (name, schema) in [
        ("zod's record", json!({"type": "object", "propertyNames": text, "additionalProperties": {}})),
        (
            "names by a pattern",
            json!({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": text}),
        ),
        (
            "names of a list",
            json!({"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"type": "number"}, "required": ["a", "b"]}),
        ),
        ("names of a length", json!({"type": "object", "propertyNames": {"minLength": 1, "maxLength": 8}})),
        ("a list that may repeat", json!({"type": "array", "items": text, "uniqueItems": false})),
        ("one at most", json!({"type": "array", "items": text, "uniqueItems": true, "maxItems": 1})),
        ("zod's never", json!({"type": "object", "properties": {"a": text}, "additionalProperties": {"not": {}}})),
        ("no text", json!({"not": {"type": "string"}})),
        ("if alone", json!({"type": "object", "if": {"required": ["a"]}})),
        ("if that holds", json!({"type": "object", "if": true, "then": {"required": ["a"]}})),
        ("contains anything", json!({"type": "array", "contains": {}})),
        ("nothing depends", json!({"type": "object", "dependentRequired": {"a": []}})),
        ("it is there", json!({"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}})),
        ("nothing else", json!({"type": "object", "properties": {"a": text}, "unevaluatedProperties": false})),
        (
            "OpenAPI",
            json!({"type": "object", "nullable": true, "discriminator": {"propertyName": "k"}, "example": {},
            "properties": {"a": {"type": "integer", "format": "int64", "xml": {}, "deprecated": true}}}),
        ),
        ("Google's", json!({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}})),
        ("counts as floats", json!({"type": "array", "minItems": 1.0, "maxItems": 2.0})),
        ("an older schema", json!({"$schema": "http://json-schema.org/schema#", "id": "http://x/y", "type": "object"})),
        (
            "a place that is referred to",
            json!({"type": "object", "properties": {"a": text,
            "b": {"$ref": "#/properties/a"}}}),
        ),
        ("itself", json!({"type": "object", "properties": {"next": {"$ref": "#"}}})),
        ("an anchor", json!({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "integer"}}})),
        (
            "a tree of pydantic",
            json!({"$defs": {"Node": {"type": "object", "properties": {
            "value": {"title": "V", "type": "integer"}, "children": {"type": "array", "default": [],
            "items": {"$ref": "#/$defs/Node"}}}, "required": ["value"]}}, "$ref": "#/$defs/Node"}),
        ),
    ] {
        check(name, &schema, None);
        // A place that is referred to is another one there.
        if !schema.to_string().contains("#/") {
            check(name, &of(schema), None);
        }
    }
    for format in
        "binary path password base64 int64 ulid jwt regex uri-reference iri json-pointer x date-time email uuid"
            .split(' ')
    {
        check(format, &of(json!({"type": "string", "format": format})), None);
    }
}

#[test]
fn what_cannot_be_kept_to_is_named() {
    let text = json!({"type": "string"});
    for (name, schema, place) in [
        ("a set of pydantic", json!({"type": "array", "items": text, "uniqueItems": true}), ".uniqueItems"),
        ("contains", json!({"type": "array", "items": text, "contains": {"const": "x"}}), ".contains"),
        (
            "if",
            json!({"type": "object", "properties": {"a": text}, "if": {"required": ["a"]},
                "then": {"required": ["b"]}}),
            ".if",
        ),
        ("not", json!({"type": "string", "not": {"pattern": "x"}}), ".not"),
        ("a look-ahead", json!({"type": "string", "pattern": "^(?!x)y$"}), ".pattern"),
        (
            "zod's email",
            json!({"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)@x$"}),
            ".pattern",
        ),
        (
            "a decimal of pydantic",
            json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}),
            ".anyOf[1].pattern",
        ),
        (
            "a set or none",
            json!({"anyOf": [{"type": "array", "uniqueItems": true}, {"type": "null"}]}),
            ".anyOf[0].uniqueItems",
        ),
        ("type None", json!({"type": "None"}), ".type"),
        ("type 5", json!({"type": 5}), ".type"),
        ("required of draft 3", json!({"type": "string", "required": true}), ".required"),
        ("properties as a list", json!({"type": "object", "properties": ["a"]}), ".properties"),
        ("nowhere", json!({"$ref": "#/$defs/Absent"}), ".$ref"),
        ("another document", json!({"$ref": "https://example.com/x.json"}), ".$ref"),
        ("a length of text", json!({"type": "string", "maxLength": "5"}), ".maxLength"),
        ("a step of nothing", json!({"type": "number", "multipleOf": 0}), ".multipleOf"),
        ("both hold at times", json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), ".oneOf"),
        (
            "rest of joined",
            json!({"allOf": [{"type": "object"}], "unevaluatedProperties": false}),
            ".unevaluatedProperties",
        ),
    ] {
        check(name, &schema, Some(place));
        check(name, &of(schema), Some(&format!(".properties.m{place}")));
    }
    let inside = json!({"$ref": "#/$defs/S", "$defs": {"S": {"type": "array", "uniqueItems": true}}});
    check("in a definition", &inside, Some(".$defs.S.uniqueItems"));
}

#[test]
fn a_branch_that_cannot_be_kept_to_is_closed_where_another_is_left() {
    let look_ahead = json!({"type": "string", "pattern": "^(?!x)y$"});
    let fitted = fit_schema(&json!({"anyOf": [{"type": "number"}, look_ahead]}), false).unwrap();
    assert_eq!(fitted.schema, json!({"anyOf": [{"type": "number"}]}));
    let fitted = fit_schema(&json!({"anyOf": [{"type": "null"}, look_ahead]}), false).unwrap();
    assert_eq!(fitted.schema, json!({"anyOf": [{"type": "null"}, {"type": "string"}]}));
}

#[test]
fn what_allows_nothing_is_refused() {
    for strict in [false, true] {
        assert_eq!(fit_schema(&json!(false), strict).unwrap_err().place, "");
    }
}
