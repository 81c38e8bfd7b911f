//! Detection of dialects from chat templates.

use dialect::{Calls, Dialect, Thoughts};

#[test]
fn a_template_shows_its_dialect() {
    let none: &[&str] = &[];
    // Sources with the marks of a family as its templates have them, and nothing else of it.
    let table: &[(&str, &[&str], &str, &str)] = &[
        ("{{ messages }}", none, "", ""),
        ("{{ '<tool_call>' + call + '</tool_call>' }}", none, "hermes", ""),
        ("{{ content.split('</think>')[-1] }}<tool_call>", none, "hermes", "qwen3"),
        ("{{ '{\"name\": \"' + name + '\", \"parameters\": ' }}", none, "llama3_json", ""),
        ("{{ '<|python_tag|>' + name + '.call(' }}", none, "llama3_json", ""),
        ("{{ messages }}", &["<|python_tag|>", "<|eot_id|>"], "llama3_json", ""),
        ("[TOOL_CALLS] [", none, "mistral", ""),
        ("[THINK]{{ t }}[/THINK][TOOL_CALLS]{{ n }}[ARGS]", none, "mistral", "mistral"),
        ("{{ messages }}", &["[INST]", "[TOOL_CALLS]"], "mistral", ""),
        ("<tool_call>\\n<function=x>\\n<parameter=y>\\n</think>", none, "qwen3_coder", "qwen3"),
        ("<|start|>assistant<|channel|>analysis<|message|>", none, "openai", "openai_gptoss"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\\n```json", none, "deepseek_v3", ""),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜></think>", none, "deepseek_v31", "qwen3"),
        ("<tool_call>{{ n }}\\n<arg_key>k</arg_key><think></think>", none, "glm45", "qwen3"),
        ("<|tool_call|>{{ calls }}", none, "granite", ""),
        ("Here is my thought process: Here is my response:", none, "", "granite"),
        ("<start_function_call>call:", none, "functiongemma", ""),
        ("<|tool_call>call:x{}<tool_call|><|channel>thought\\n<channel|>", none, "gemma4", "gemma4"),
        ("<|system|><|tool|>{{ tools }}<|/tool|>", none, "phi4_mini_json", ""),
        ("<|tool_list_start|>", &["<|tool_call_start|>"], "lfm2", ""),
        ("<|python_start|>", none, "llama4_pythonic", ""),
        ("Use [func_name1(param1=value1), func_name2(...)]<|header_start|>", none, "llama4_pythonic", ""),
        ("Use [func_name1(param1=value1), func_name2(...)]<|python_tag|>", none, "pythonic", ""),
        ("as functools[{\"name\": [function name]}, ...]", none, "phi4_mini_json", ""),
        ("'{\"name\": \"' ', \"parameters\": ' <function_call> {}", none, "granite-20b-fc", ""),
        ("<function_calls>", none, "olmo3", ""),
        ("<|tool_calls_section_begin|><think></think>", none, "kimi_k2", "qwen3"),
        ("<minimax:tool_call><think>", none, "minimax_m2", "qwen3"),
        ("<seed:tool_call><seed:think>", none, "seed_oss", "seed_oss"),
    ];
    for (sources, tokens, calls, thoughts) in table {
        let dialect = Dialect::of_template(sources, tokens);
        let name = (dialect.calls.map_or("", Calls::name), dialect.thoughts.map_or("", Thoughts::name));
        assert_eq!(name, (*calls, *thoughts), "{sources:?}");
    }
}

#[test]
fn templates_of_the_tree_show_theirs() {
    let table = [
        ("chatml", "", ""),
        ("features", "", ""),
        ("gemma2", "", ""),
        ("gemma3", "", ""),
        ("granite", "granite", ""),
        ("llama3", "llama3_json", ""),
        // It has its own marks.
        ("mistral", "", ""),
        ("phi", "phi4_mini_json", ""),
        ("qwen3", "hermes", "qwen3"),
        ("smollm3", "", "qwen3"),
    ];
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/data/templates");
    let files = std::fs::read_dir(directory).expect("the text crate has templates").flatten();
    let mut found: Vec<_> = files.map(|file| file.path()).collect();
    found.sort();
    let seen: Vec<(String, &str, &str)> = found
        .iter()
        .map(|path| {
            let dialect = Dialect::of_template(&std::fs::read_to_string(path).expect("a text"), &[] as &[&str]);
            let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
            (name, dialect.calls.map_or("", Calls::name), dialect.thoughts.map_or("", Thoughts::name))
        })
        .collect();
    let wanted: Vec<_> = table.into_iter().map(|(name, calls, thoughts)| (name.to_owned(), calls, thoughts)).collect();
    assert_eq!(seen, wanted);
}

#[test]
fn every_name_means_something() {
    for name in Calls::NAMES {
        let calls = Calls::named(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(Calls::named(calls.name()), Some(calls), "{name}");
    }
    for name in Thoughts::NAMES {
        let thoughts = Thoughts::named(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(Thoughts::named(thoughts.name()), Some(thoughts), "{name}");
        assert!(!thoughts.closing().is_empty(), "{name}");
    }
    assert_eq!(Calls::named("nope"), None);
    assert_eq!(Thoughts::named(""), None);
}

/// Every name that vLLM or SGLang accepts: the format here, or none, if it is not supported.
#[test]
fn names_of_other_engines_are_taken_or_refused() {
    let calls: &[(&str, &str)] = &[
        (
            "apertus apertus2509 cohere_command3 cohere_command4 deepseek_v32 deepseek_v4 deepseekv32 deepseekv4 dots",
            "",
        ),
        ("gigachat3 gigachat35 hy_v3 inkling k2_horizon kimi_k3 ling3 minicpm5 minimax_m3 minimax-m3 muse", ""),
        ("poolside_v1 solar_open2 spark25 step3 trinity", ""),
        ("xlam json", "json"),
        ("internlm interns1", "internlm"),
        ("longcat", "longcat"),
        ("hermes granite4 ernie45 qwen qwen25", "hermes"),
        ("qwen3_coder qwen3_xml mimo step3p5", "qwen3_coder"),
        ("llama3_json llama4_json llama3", "llama3_json"),
        ("deepseek_v3 deepseekv3", "deepseek_v3"),
        ("deepseek_v31 deepseekv31", "deepseek_v31"),
        ("glm glm45 glm47", "glm45"),
        ("openai gpt-oss harmony", "openai"),
        ("minimax_m2 minimax-m2", "minimax_m2"),
        ("jamba hunyuan hunyuan_a13b", "jamba"),
        ("mistral", "mistral"),
        ("kimi_k2", "kimi_k2"),
        ("gemma4", "gemma4"),
        ("lfm2", "lfm2"),
        ("pythonic", "pythonic"),
    ];
    for (names, form) in calls {
        for name in names.split(' ') {
            assert_eq!(Calls::named(name).map_or("", Calls::name), *form, "{name}");
        }
    }
    let thoughts: &[(&str, &str)] = &[
        ("hunyuan_a13b hy_v3 inkling kimi kimi_k3 minimax_m2_append_think minimax-append-think minimax_m3", ""),
        ("poolside_v1 solar_open2", ""),
        ("qwen3 deepseek_v3 deepseek_v4 deepseek-v3 deepseek-v4 ernie45 glm glm45 glm47 holo2 interns1", "qwen3"),
        ("kimi_k2 mimo nemotron_3 nemotron_v3 olmo3 step3p5", "qwen3"),
        ("deepseek_r1 deepseek-r1 minimax minimax_m2 minimax-m2 qwen3-thinking step3", "deepseek_r1"),
        ("cohere_command3 cohere_command4", "cohere_command3"),
        ("openai_gptoss gpt-oss", "openai_gptoss"),
        ("mistral", "mistral"),
        ("seed_oss", "seed_oss"),
        ("gemma4", "gemma4"),
        ("granite", "granite"),
    ];
    for (names, form) in thoughts {
        for name in names.split(' ') {
            assert_eq!(Thoughts::named(name).map_or("", Thoughts::name), *form, "{name}");
        }
    }
}
