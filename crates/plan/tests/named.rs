//! Models by name, or by their number of parameters.

use plan::NamedModel;

#[test]
fn parameters_are_counted_as_people_write_them() {
    let table = [
        ("7b", Some(7_000_000_000)),
        ("0.5B", Some(500_000_000)),
        ("135m", Some(135_000_000)),
        ("1t", Some(1_000_000_000_000)),
        ("30b-a3b", Some(30_000_000_000)),
        ("30b-a40b", None),
        ("30b-ab", None),
        ("30b-a", None),
        ("b", None),
        ("", None),
        ("7", None),
        ("-7b", None),
        ("nanb", None),
        ("1e3b", None),
        ("0b", None),
        ("7bb", None),
        ("7ü", None),
    ];
    for (text, wanted) in table {
        let found = NamedModel::find(text).map(|model| model.shape.parameters());
        assert_eq!(found, wanted, "{text:?}");
    }
}

#[test]
fn the_nearest_known_model_lends_its_heads() {
    for (name, assumed) in [("7b", "mistral-7b"), ("1b", "llama-3.2-1b"), ("400b", "llama-3.1-70b")] {
        assert_eq!(NamedModel::find(name).expect("a count").assumed, Some(assumed), "{name}");
    }
    assert_eq!(NamedModel::find("llama-3.1-8b").expect("known").assumed, None);
    assert_eq!(NamedModel::find("llama-9"), None);
}
