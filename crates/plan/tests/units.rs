//! Quantities as people write and read them.

use plan::units::{bytes, duration, operations, prefixed, quantity, rate, requests_per_second, thousands};

#[test]
fn quantities_are_read_as_they_are_written() {
    let table = [
        ("312T", Some(312e12)),
        ("2t", Some(2e12)),
        ("989.4T", Some(989.4e12)),
        ("8e9", Some(8e9)),
        ("80GB", Some(80e9)),
        ("16GiB", Some(17_179_869_184.0)),
        ("5", Some(5.0)),
        ("", None),
        ("0", None),
        ("-2T", None),
        ("T", None),
        ("2X", None),
        ("1e400", None),
        ("nan", None),
        ("inf", None),
        ("2 T", None),
    ];
    for (text, wanted) in table {
        let close = |a: f64, b: f64| (a - b).abs() <= b * 1e-12;
        let same = match (quantity(text), wanted) {
            (Some(got), Some(wanted)) => close(got, wanted),
            (got, wanted) => got == wanted,
        };
        assert!(same, "{text:?} gave {:?}", quantity(text));
    }
    let rates = [("2/s", Some(2.0)), ("30/min", Some(0.5)), ("36/h", Some(0.01)), ("0.5", Some(0.5)), ("1/d", None)];
    for (text, wanted) in rates.into_iter().chain([("0/s", None), ("/s", None), ("-1", None), ("inf", None)]) {
        assert_eq!(requests_per_second(text), wanted, "{text:?}");
    }
}

#[test]
fn units_are_chosen_for_people() {
    assert_eq!(
        [rate(9.96), rate(412.4), rate(8430.0), rate(123_456.0)],
        ["10.0 tok/s", "412 tok/s", "8.4k tok/s", "123k tok/s"]
    );
    assert_eq!(
        [duration(0.0008), duration(0.096), duration(1.239), duration(720.0)],
        ["0.8 ms", "96 ms", "1.24 s", "12.0 min"]
    );
    assert_eq!([bytes(512), bytes(8 << 20), bytes(7 << 29)], ["512 B", "8.0 MiB", "3.50 GiB"]);
    assert_eq!([operations(3.751e12, "OP"), operations(4.12e11, "FLOP")], ["3.75 TOP/s", "412 GFLOP/s"]);
    let table = [(14e9, "14 G"), (14.336e12, "14.3 T"), (987.0, "987"), (1000.0, "1 k"), (0.5, "0.50"), (1e15, "1 P")];
    for (value, wanted) in table {
        assert_eq!(prefixed(value), wanted, "{value}");
    }
    assert_eq!(
        [thousands(0), thousands(999), thousands(1024), thousands(1_234_567)],
        ["0", "999", "1,024", "1,234,567"]
    );
}
