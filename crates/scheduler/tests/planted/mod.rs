//! Tests of the tests, first half: every bug of the catalogue can still be planted. That each is found is the
//! second half, `search.rs`, which `cargo xtask planted` runs against a copy of the scheduler with the bugs in it.

mod catalogue;
mod weave;

use std::collections::BTreeSet;
use std::path::Path;

use catalogue::{Edit, MUTATIONS, Mutation};
use weave::weave;

fn read(file: &str) -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// One that does not is moved to where its rule is now; it is never deleted with its line.
#[test]
fn each_mutation_applies_in_exactly_one_place() {
    let woven = weave(MUTATIONS, read).unwrap_or_else(|errors| panic!("{errors}"));
    let switches: usize = woven.values().map(|text| text.matches("crate::planted::is(").count()).sum();
    assert_eq!(switches, MUTATIONS.iter().map(|mutation| mutation.edits.len()).sum::<usize>());
    assert!(weave::switch(MUTATIONS).contains(MUTATIONS[0].name));
}

#[test]
fn each_mutation_has_a_name_and_an_origin() {
    let names: BTreeSet<&str> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
    assert_eq!(names.len(), MUTATIONS.len(), "two have one name");
    assert!(MUTATIONS.len() >= 70, "the catalogue only grows");
    for Mutation { name, origin, edits, .. } in MUTATIONS {
        assert!(origin.ends_with('.') && !edits.is_empty(), "{name}: {origin}");
        assert!(edits.iter().all(|edit| edit.find != edit.replace), "{name} changes nothing");
    }
}

#[test]
fn what_does_not_apply_is_said() {
    let source = |_: &str| Ok("fn f() {\n    a(\n        1,\n    );\n    b(2); b(2);\n    x > 1 && y\n}".to_string());
    let one = |edits| weave(&[Mutation { name: "One", origin: "", edits, is_of_pair: false }], source);
    let edit = |find| Edit { file: "f.rs", find, replace: "false" };
    let woven = |edits| one(edits).expect("it applies").remove("f.rs").expect("it was woven");
    const WRAPPED: &[Edit] = &[Edit { file: "f.rs", find: "a(1,);", replace: "" }];
    assert!(woven(WRAPPED).contains("if crate::planted::is(0) {  } else { a(\n        1,\n    ); }"));
    const EXPRESSION: &[Edit] = &[Edit { file: "f.rs", find: "x > 1", replace: "true" }];
    assert!(woven(EXPRESSION).contains("(if crate::planted::is(0) { true } else { x > 1 }) && y"));
    for (find, places) in [("c(3)", 0), ("b(2)", 2)] {
        let edits: &'static [Edit] = Vec::leak(vec![edit(find)]);
        assert!(one(edits).is_err_and(|error| error.contains(&format!("there are {places} places"))), "{find}");
    }
    const TWICE: &[Edit] = &[
        Edit { file: "f.rs", find: "x > 1", replace: "true" },
        Edit { file: "f.rs", find: "1 && y", replace: "true" },
    ];
    assert!(one(TWICE).is_err_and(|error| error.contains("two mutations in one place")));
}
