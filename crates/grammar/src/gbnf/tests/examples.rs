//! Grammars as llama.cpp's users have them.

use testing::Dice;

use super::{compare, is_answer, is_of, rules_of};
use crate::gbnf::parse;
use crate::rule::Rule;

struct Example {
    name: &'static str,
    grammar: &'static str,
    answers: &'static [&'static str],
    others: &'static [&'static str],
}

const EXAMPLES: &[Example] = &[
    Example {
        name: "json",
        grammar: include_str!("examples/json.gbnf"),
        answers: &["{}", "{ }", r#"{"a": [1, -2.5e3, null, "b\n"]}"#, "{\"\\u00e9\":\n\t{\"x\":true} }"],
        others: &["", "[1]", "{", r#"{"a"}"#, "{}}", "{  }", r#"{"a":01}"#, r#"{"a":"\x"}"#, "{\"a\":\"\n\"}"],
    },
    Example {
        name: "a converted schema",
        grammar: include_str!("examples/converted.gbnf"),
        answers: &[r#"{"name":"Ada","age":36}"#, r#"{ "name": "\"Ada", "age": 150, "kind": "fox"}"#],
        others: &[
            r#"{"name":"","age":36}"#,
            r#"{"name":"Ada","age":151}"#,
            r#"{"name":"Ada","age":1,}"#,
            r#"{"age":1}"#,
        ],
    },
    Example {
        name: "any other properties",
        grammar: include_str!("examples/additional.gbnf"),
        answers: &[r#"{"age":1}"#, r#"{"age":1, "ages":[], "no1":{}}"#, r#"{"age":1,"an":-2.5}"#, r#"{"age":1,"":0}"#],
        others: &[r#"{"age":1,"age":2}"#, r#"{"age":1,"no":2}"#, r#"{"age":"1"}"#],
    },
    Example {
        name: "dates",
        grammar: include_str!("examples/dates.gbnf"),
        answers: &[
            "[]",
            r#"["2024-02-30T23:59:59Z"]"#,
            r#"["2024-12-01T00:00:00.123+01:00", "0000-01-01T01:01:01-23:59"]"#,
        ],
        others: &[r#"["2024-13-01T00:00:00Z"]"#, r#"["2024-12-01T24:00:00Z"]"#, r#"["2024-12-01"]"#],
    },
    Example {
        name: "list",
        grammar: "root ::= item+\n# one per line\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
        answers: &["- a\n", "- milk\n- two - eggs\n", "- 卵\n"],
        others: &["", "- a", "- \n", "a\n", "- a\r\n"],
    },
    Example {
        name: "arithmetic",
        grammar: include_str!("examples/arithmetic.gbnf"),
        answers: &["1+2=3\n", "x *(y1 -3) = z\n\n", "a=b\nc=d\n"],
        others: &["1+2=3", "1+=3\n", "=1\n", "x y=1\n"],
    },
    Example {
        name: "arithmetic that begins with itself",
        grammar: include_str!("examples/left-recursive.gbnf"),
        answers: &["1", "1+2*3", "(1-22)/(3)"],
        others: &["", "1+", "(1", "1 2"],
    },
    Example {
        name: "chess",
        grammar: include_str!("examples/chess.gbnf"),
        answers: &[
            "1. e4 e5\n2. Nf3 Nc6\n",
            "1. d4 d5\n12. O-O-O+ exd8=Q#\n",
            "1. a4 a5\n2. Ra1xa8 Nbd7\n3. O-O h1=N\n",
        ],
        others: &["1. e4 e5\n", "1. e9 e5\n2. a4 a5\n", "2. e4 e5\n3. a4 a5\n", "1. e4 e5\n2. O-O-O-O a5\n"],
    },
    Example {
        name: "a small C",
        grammar: include_str!("examples/small-c.gbnf"),
        answers: &["", "int f(){}", "int f(int x){return  f(x-1)*2;}", "char g(){while(a<=b){x = -1;}// done\n}"],
        others: &["int f(", "intf(){}", "int f(){return x}", "int f(){if(a){}}", "int f(){x=1;}"],
    },
    Example {
        name: "japanese",
        grammar: include_str!("examples/japanese.gbnf"),
        answers: &["日本語", "ひらがな カタカナ", "猫、犬。"],
        others: &["", "abc", " 猫", "猫 ", "猫  犬"],
    },
    Example {
        name: "words of two scripts",
        grammar: "root ::= (kata hira | hira)*\nkata ::= [ァ-ヿ]+\nhira ::= [ぁ-ゟ]+",
        answers: &["", "ねこ", "ネコねこ", "ネコねこイヌいぬ"],
        others: &["ネコ", "ねこネコ", "猫"],
    },
    Example {
        name: "spaces behind spaces",
        grammar: "root ::= ws \"a\" ws ws \"b\" ws? | ws\nws ::= [ \\n]*",
        answers: &["", " ", "ab", " a \n b  "],
        others: &["a", "a b c", "ba"],
    },
    Example {
        name: "thoughts, then an answer",
        grammar: "root ::= \"<think>\" ([^<] | \"<\" [^/])* \"</think>\" .*",
        answers: &["<think></think>", "<think>a < b</think>12\n", "<think>x</think>"],
        others: &["<think>", "a", "<think>a</b></think>"],
    },
];

#[test]
fn grammars_of_llama_cpp_take_what_they_should() {
    for example in EXAMPLES {
        let rule = Rule::Gbnf(example.grammar.to_owned());
        let rules = rules_of(&parse::parse(example.grammar).unwrap());
        for (texts, is_one) in [(example.answers, true), (example.others, false)] {
            for text in texts {
                if text.chars().count() < 64 {
                    assert_eq!(is_of(&rules, text), is_one, "{}, by trying everything: {text:?}", example.name);
                }
                for seed in 0..4 {
                    assert_eq!(
                        is_answer(&rule, text, &mut Dice::new(seed)),
                        Some(is_one),
                        "{}: {text:?}",
                        example.name
                    );
                }
            }
        }
    }
}

#[test]
fn their_texts_with_changes_are_judged_as_by_trying_everything() {
    for example in testing::part_of(EXAMPLES, 2) {
        let rule = Rule::Gbnf(example.grammar.to_owned());
        let rules = rules_of(&parse::parse(example.grammar).unwrap());
        let letters: Vec<char> = example.answers.concat().chars().collect();
        let count = if testing::is_long() { 400 } else { 80 };
        let (taken, refused) = compare(&rule, &rules, (example.answers, &letters), 1, count);
        println!("{}: {taken} texts taken, {refused} refused", example.name);
        assert!(taken.min(refused) * 20 > count, "{}: {taken} texts taken, {refused} refused", example.name);
    }
}
