//! Schemas as zod, pydantic, msgspec, OpenAPI and people write them: what of them is kept to, and what is named.

use grammar::{Rule, check_rule, fit_schema};
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

/// One of that number of names must be there.
fn either(at: usize, count: usize) -> Value {
    json!({"anyOf": (0..count).map(|n| json!({"required": [format!("a{at}{n}")]})).collect::<Vec<_>>()})
}

#[test]
fn what_says_nothing_or_has_an_equal_is_kept_to() {
    let rows: Vec<(String, Value)> = serde_json::from_str(include_str!("schemas/kept.json")).unwrap();
    for (name, schema) in &rows {
        check(name, schema, None);
        // A place that is referred to is another one there.
        if !schema.to_string().contains("#/") {
            check(name, &of(schema.clone()), None);
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
    let rows: Vec<(String, String, Value)> = serde_json::from_str(include_str!("schemas/open.json")).unwrap();
    for (name, place, schema) in rows {
        check(&name, &schema, Some(&place));
        check(&name, &of(schema), Some(&format!(".properties.m{place}")));
    }
    let inside = json!({"$ref": "#/$defs/S", "$defs": {"S": {"type": "array", "uniqueItems": true}}});
    check("in a definition", &inside, Some(".$defs.S.uniqueItems"));
    let itself = json!({"$ref": "#/$defs/S"});
    for endless in [
        itself.clone(),
        json!({"type": "object", "properties": {"n": itself}, "required": ["n"]}),
        json!({"type": "array", "items": itself, "minItems": 1}),
        json!({"anyOf": [itself, {"type": "array", "prefixItems": [itself], "minItems": 1}]}),
    ] {
        let schema = json!({"type": "object", "properties": {"a": itself}, "$defs": {"S": endless}});
        check("no end", &schema, Some(".$defs.S"));
    }
    let ends = json!({"anyOf": [itself, {"type": "null"}]});
    check("an end", &json!({"type": "object", "properties": {"a": itself}, "$defs": {"S": ends}}), None);
}

/// Of what is not kept to in full as much is kept to as can be.
#[test]
fn one_name_more_than_those_that_are_there_is_kept_to() {
    let schema = json!({"type": "object", "required": ["a"], "minProperties": 5});
    assert_eq!(fit_schema(&schema, false).unwrap().schema["minProperties"], 2);
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
    for schema in [json!(false), json!({"not": {}})] {
        check("nothing", &schema, Some(""));
    }
}

/// What is left out of thousands of definitions takes as long as there are references, not as their third power.
#[test]
fn endless_definitions_are_told_apart_from_those_that_end() {
    let to = |name: String| json!({"$ref": format!("#/$defs/{name}")});
    let mut all = serde_json::Map::new();
    for at in 0..2000 {
        all.insert(format!("e{at}"), to(format!("e{at}")));
        all.insert(format!("c{at}"), if at == 0 { json!({"type": "null"}) } else { to(format!("c{}", at - 1)) });
    }
    let parts: Vec<Value> = (0..2000).map(|at| to(format!("e{at}"))).chain([to("c1999".into())]).collect();
    let fitted = fit_schema(&json!({"prefixItems": parts, "$defs": all}), false).unwrap();
    assert_eq!(fitted.open.iter().filter(|place| place.starts_with(".$defs.e")).count(), 2000);
    assert!(!fitted.open.iter().any(|place| place.starts_with(".$defs.c")), "{:?}", fitted.open.last());
}

/// A refusal says what its sender can do, not what the compiler calls its parts.
#[test]
fn refusals_have_no_inner_words() {
    let both = |one: &str, other: &str| json!({"type": "string", "allOf": [{"pattern": one}, {"pattern": other}]});
    let lists =
        |at: usize| json!({"type": "array", "items": {"type": "array", "maxItems": 99 + at}, "maxItems": 900 + at});
    for (schema, words) in [
        (both(".*a.{60}b.{60}", ".*b.{60}c.{60}"), "simplify"),
        (json!({"type": "string", "pattern": r"^(\w+\s?){1,50}$", "minLength": 100, "maxLength": 5000}), "simplify"),
        (json!({"type": "object", "allOf": (0..6).map(|at| either(at, 99)).collect::<Vec<_>>()}), "simplify"),
        (json!({"type": "string", "const": 1}), "nothing satisfies it"),
        (json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}), "no name in common"),
        (json!({"type": "object", "properties": {"a": false}, "required": ["a"]}), "nothing is allowed in it"),
        (json!({"type": "array", "items": false, "minItems": 1}), "there must be an item"),
        (json!({"type": "string", "pattern": "^z", "format": "uuid"}), "nothing satisfies it"),
        (json!({"type": "number", "multipleOf": 0.07}), "smaller unit"),
        (json!({"anyOf": (0..200).map(lists).collect::<Vec<_>>()}), "too many ways"),
    ] {
        let problem = fit_schema(&schema, true).unwrap_err().problem;
        let inner = ["uel", "regex", "nsatisfiable", "schema", "assertion"];
        assert!(problem.contains(words) && !inner.iter().any(|word| problem.contains(word)), "{problem}");
    }
}

/// `#/$defs/a.b` and `#/$defs/a/b` are two places, and shown as one.
#[test]
fn references_are_told_apart_by_where_they_lead() {
    let definitions = json!({"a.b": {"type": "integer"}, "a": {"b": {"type": "boolean"}}, "[0]": {"type": "null"}});
    let all = json!({"x": {"$ref": "#/$defs/a.b"}, "y": {"$ref": "#/$defs/a/b"}, "z": {"$ref": "#/$defs/[0]"}});
    let schema = json!({"type": "object", "properties": all, "$defs": definitions});
    let fitted = fit_schema(&schema, true).unwrap().schema;
    for (property, kind) in [("x", "integer"), ("y", "boolean"), ("z", "null")] {
        let name = fitted["properties"][property]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        assert_eq!(fitted["$defs"][name]["type"], kind, "{fitted}");
    }
}

/// What a bound that is moved allows is within what was asked for.
#[test]
fn bounds_that_no_double_is_are_moved_inside() {
    let (far, exact) = (9_223_372_036_854_774_784_f64, 9_007_199_254_740_992_f64);
    for (asked, expected) in [
        (json!({"minimum": -5, "maximum": 5.5}), json!({"minimum": -5, "maximum": 5.5})),
        (json!({"minimum": i64::MIN, "maximum": i64::MAX}), json!({"minimum": -far, "maximum": far})),
        (json!({"minimum": 0, "maximum": u64::MAX}), json!({"minimum": 0, "maximum": far})),
        (json!({"minimum": -1e308, "maximum": 1e308}), json!({"minimum": -far, "maximum": far})),
        (json!({"exclusiveMinimum": 0, "minimum": -1e308}), json!({"exclusiveMinimum": 0, "minimum": -far})),
        (json!({"exclusiveMinimum": -1e308, "minimum": 3}), json!({"minimum": 3.0})),
        (json!({"minimum": 9_007_199_254_740_993_i64}), json!({"minimum": exact + 2.0})),
        (json!({"maximum": 9_007_199_254_740_993_i64}), json!({"maximum": exact})),
        (json!({"exclusiveMinimum": 9_007_199_254_740_994_i64}), json!({"minimum": exact + 4.0})),
        (json!({"exclusiveMaximum": -9_007_199_254_740_993_i64}), json!({"maximum": -exact - 2.0})),
        (json!({"minimum": 1e17, "exclusiveMinimum": true}), json!({"minimum": 1e17_f64.next_up()})),
    ] {
        let mut schema = asked.clone();
        schema["type"] = json!("number");
        let fitted = fit_schema(&schema, true).unwrap_or_else(|misfit| panic!("{asked}: {misfit:?}")).schema;
        let bounds: Vec<_> = fitted.as_object().unwrap().iter().filter(|(key, _)| *key != "type").collect();
        assert_eq!(bounds.len(), expected.as_object().unwrap().len(), "{asked}: {fitted}");
        bounds.iter().for_each(|(key, bound)| assert_eq!(**bound, expected[key.as_str()], "{asked}: {fitted}"));
    }
}

/// Of values that are listed those are left that the compiler tells apart; `not` compares as JSON schema does.
#[test]
fn values_that_cannot_be_told_apart_are_left_out() {
    let fitted = fit_schema(&json!({"enum": [1, 9_007_199_254_740_993_i64, "x", 1e300]}), false).unwrap();
    assert_eq!((fitted.schema, fitted.open), (json!({"enum": [1, "x", 1e300]}), vec![".enum[1]".to_owned()]));
    let fitted = fit_schema(&json!({"enum": [1, [2], "x"], "not": {"enum": [1.0, [2.0]]}}), true).unwrap();
    assert_eq!(fitted.schema, json!({"enum": ["x"]}));
}

/// Expressions are JavaScript's: what it reads otherwise than Rust is kept to as it reads it.
#[test]
fn expressions_are_those_of_javascript() {
    for pattern in [
        "^{a}$",
        "^[[a]{2}$",
        "^[a&&b]$",
        "^[+--]$",
        "^[^]{2}$",
        r"^\cJ$",
        r"^\ud83d\ude00$",
        r"^\s\S$",
        r"\Aab\Z",
        r"^[\b]$",
    ] {
        check(pattern, &json!({"type": "string", "pattern": pattern}), None);
        check(pattern, &json!({"type": "object", "patternProperties": {pattern: {"type": "integer"}}}), None);
        check(pattern, &json!({"type": "object", "propertyNames": {"pattern": pattern}}), None);
    }
    let twice = json!({"type": "object", "patternProperties": {"^{$": {"type": "integer"}, r"^\{$": {"minimum": 1}}});
    check("one in two spellings", &twice, None);
}

/// What is left open is open: nothing that was said of the others closes it.
#[test]
fn an_object_that_is_too_large_is_left_open_and_says_why() {
    let one = json!({"const": 1});
    for (count, required) in [(300, 0), (1000, 1000)] {
        let names: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
        let all: Value = names.iter().map(|name| (name.clone(), one.clone())).collect::<serde_json::Map<_, _>>().into();
        let schema =
            json!({"type": "object", "properties": all, "required": names[..required], "additionalProperties": false});
        for (schema, place) in [(schema.clone(), ".properties"), (of(schema), ".properties.m.properties")] {
            let misfit = fit_schema(&schema, true).unwrap_err();
            assert_eq!(misfit.place, place, "{misfit}");
            assert!(misfit.problem.contains("properties"), "{misfit}");
            let fitted = fit_schema(&schema, false).unwrap();
            assert_eq!(fitted.open, [place], "{count}");
            assert_eq!(
                fitted.schema.to_string().matches("additionalProperties").count(),
                usize::from(place != ".properties")
            );
        }
    }
}

/// However many of its parts do not compile, a bounded number of them is looked at, and the others are left open.
#[test]
fn looking_for_what_does_not_compile_has_an_end() {
    let bomb = || json!({"type": "object", "allOf": (0..5).map(|at| either(at, 6)).collect::<Vec<_>>()});
    let all: serde_json::Map<String, Value> = (0..60).map(|at| (format!("p{at}"), bomb())).collect();
    let listed = json!({"type": "object", "properties": all});
    let referred: serde_json::Map<String, Value> =
        (0..60).map(|at| (format!("p{at}"), json!({"$ref": format!("#/$defs/p{at}")}))).collect();
    let deep = (0..30).fold(bomb(), |inner, _| json!({"type": "object", "properties": {"a": inner, "b": {}}}));
    for (name, schema, place) in [
        ("listed", listed, ".properties.p0.allOf[3]"),
        ("referred", json!({"properties": referred, "$defs": all}), ".$defs.p0.allOf[3]"),
        ("deep", deep, ".properties.a"),
        ("wide", json!({"type": "object", "allOf": (0..3).map(|at| either(at, 10)).collect::<Vec<_>>()}), ".allOf[2]"),
        ("none of it", json!({"type": "object", "x-guidance": {"whitespace_pattern": "("}}), ".x-guidance"),
    ] {
        let fitted = fit_schema(&schema, false).unwrap_or_else(|misfit| panic!("{name}: {misfit:?}"));
        assert!(fitted.open[0].starts_with(place), "{name}: {:?}", fitted.open);
        assert_ne!(fitted.open.last().unwrap(), "", "{name}: the whole is open");
        assert!(check_rule(&Rule::JsonSchema(fitted.schema)).is_ok(), "{name}");
        assert!(fit_schema(&schema, true).unwrap_err().place.starts_with(place), "{name}");
    }
}

/// One part of hundreds that cannot be compiled is found, and the others are kept to.
#[test]
fn one_of_many_parts_is_named() {
    let mut all: serde_json::Map<String, Value> =
        (0..200).map(|at| (format!("p{at}"), json!({"type": "integer", "minimum": at}))).collect();
    all.insert("p170".into(), json!({"type": "number", "multipleOf": 0.07}));
    let names: Vec<String> = all.keys().cloned().collect();
    let schema = json!({"type": "object", "properties": all, "required": names});
    assert_eq!(fit_schema(&schema, true).unwrap_err().place, ".properties.p170.multipleOf");
    let fitted = fit_schema(&schema, false).unwrap();
    assert_eq!(fitted.open, [".properties.p170.multipleOf"]);
    assert_eq!(fitted.schema["properties"]["p199"]["minimum"], 199);
}
