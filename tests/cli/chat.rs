//! The chat prompt, on a terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use testing::{Scratch, lantern};
use tests::{binary, run, twostroke, wait};

use crate::terminal::Terminal;

/// In the line under each answer, once.
const PHASES: &str = " · decode ";

/// A chat.
fn chat(arguments: &str) -> Terminal {
    chat_with("", arguments)
}

/// A chat with variables.
fn chat_with(variables: &str, arguments: &str) -> Terminal {
    // `exec`, for a shell in between would get Ctrl-C as well, and dash then ends with it once the chat is over.
    Terminal::start(&format!("exec env {variables} {} run {arguments}", binary().display()))
}

/// Types a line at the prompt, waits for what it says and returns what came before that.
fn say(terminal: &mut Terminal, line: &str, wanted: &str) -> String {
    terminal.wait_for(">>> ");
    terminal.type_in(&format!("{line}\r"));
    terminal.wait_for(wanted)
}

#[test]
fn a_conversation_goes_on_and_ends_with_exit() {
    let mut terminal = chat("--temperature 0 -n 8");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 3 + 4?\r");
    let first = terminal.wait_for(PHASES);
    assert!(first.contains("prefill") && !first.contains("cached"), "{first:?}");
    terminal.wait_for(">>> ");
    // The second question finds the first one's blocks only if the conversation is sent again with it.
    terminal.type_in(&format!("Thank you{}\r", ", and thank you".repeat(20)));
    terminal.wait_for(PHASES);
    terminal.wait_for(">>> ");
    terminal.type_in("What is 5 + 5?\r");
    let third = terminal.wait_for(PHASES);
    assert!(third.contains("cached"), "the conversation so far is in the prefix cache: {third:?}");
    terminal.wait_for(">>> ");
    terminal.type_in("/help\r");
    terminal.wait_for("/clear");
    terminal.wait_for(">>> ");
    for command in ["/nonsense", "/nonsense with words"] {
        terminal.type_in(&format!("{command}\r"));
        let before = terminal.wait_for("no such command");
        assert!(!before.contains("prefill"), "no command is a question: {before:?}");
        terminal.wait_for(">>> ");
    }
    terminal.type_in("/set temperature 0.5\r");
    terminal.wait_for("temperature 0.5");
    terminal.wait_for(">>> ");
    terminal.type_in("/set temperature warm\r");
    terminal.wait_for("not a number");
    terminal.wait_for(">>> ");
    terminal.type_in("/system be brief\r");
    terminal.wait_for("from the next conversation on");
    terminal.wait_for(">>> ");
    terminal.type_in("\"\"\"What is\r");
    terminal.wait_for("... ");
    terminal.type_in("7 + 5?\"\"\"\r");
    terminal.wait_for(PHASES);
    terminal.wait_for(">>> ");
    terminal.type_in("/exit\r");
    assert_eq!(terminal.code(), Some(0));
}

/// Lines that are typed while an answer is written are the next turns: all of them.
#[test]
fn lines_that_are_typed_meanwhile_are_the_next_turns() {
    let mut terminal = chat("--temperature 0 -n 8");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 3 + 4?\r");
    terminal.wait_for_signals();
    terminal.type_in("What is 5 + 5?\rWhat is 2 + 2?\rWhat is 9");
    for _ in 0..3 {
        terminal.wait_for(PHASES);
    }
    // A line that was begun is at the prompt, and goes on.
    terminal.wait_for(">>> ");
    terminal.wait_for("What is 9");
    terminal.type_in(" + 1?\r");
    terminal.wait_for("9 + 1");
    terminal.wait_for(PHASES);
    say(&mut terminal, "/exit", "");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_chat_and_ctrl_d_leaves() {
    let mut terminal = chat("--ignore-eos --json -q"); // to the end of the context, unless it is stopped
    terminal.wait_for(">>> ");
    terminal.type_in("Once upon a time\r");
    terminal.wait_for("\n");
    terminal.wait_for_signals();
    terminal.type_in("\x03");
    terminal.wait_for("\"finish_reason\":\"interrupted\"");
    terminal.wait_for(">>> ");
    terminal.type_in("\x03");
    terminal.wait_for(">>> ");
    terminal.type_in("\x04");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_second_chat_recalls_the_lines_of_the_first() {
    let scratch = Scratch::new("recalled");
    let variables = format!("XDG_STATE_HOME={}", scratch.text());
    let mut first = chat_with(&variables, "--temperature 0 -n 8");
    say(&mut first, "What is 3 + 4?", PHASES);
    say(&mut first, " a secret", PHASES);
    first.wait_for(">>> ");
    first.type_in("\"\"\"two\r");
    first.wait_for("... ");
    first.type_in("lines\"\"\"\r");
    first.wait_for(PHASES);
    say(&mut first, "/exit", "");
    assert_eq!(first.code(), Some(0));
    let file = scratch.join("twostroke/history");
    let kept = fs::read_to_string(&file).expect("it was kept");
    assert_eq!(kept, "What is 3 + 4?\n\"\"\"two\\nlines\"\"\"\n/exit\n");
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let mut second = chat_with(&variables, "--temperature 0 -n 8");
    second.wait_for(">>> ");
    let up = "\x1b[A";
    second.type_in(up);
    second.wait_for("/exit");
    second.type_in(up);
    second.wait_for("lines\"\"\"");
    second.type_in("\r");
    second.wait_for(PHASES);
    second.wait_for(">>> ");
    // Over both lines of the entry that was just used, the command, and both lines again.
    second.type_in(&up.repeat(6));
    second.wait_for("What is 3 + 4?");
    second.type_in("\r");
    second.wait_for(PHASES);
    say(&mut second, "/exit", "");
    assert_eq!(second.code(), Some(0));
}

#[test]
fn a_history_that_is_none_is_one_note_and_no_failure() {
    let scratch = Scratch::with("no-history", &[("file", b"")]);
    fs::create_dir_all(scratch.join("state/twostroke/history")).expect("it can be made");
    for place in ["file", "state"] {
        let variables = format!("XDG_STATE_HOME={}", scratch.file(place));
        let mut terminal = chat_with(&variables, "--temperature 0 -n 8");
        let mut screen = say(&mut terminal, "One", PHASES);
        screen.push_str(&say(&mut terminal, "Two", PHASES));
        screen.push_str(&say(&mut terminal, "/show", "4 messages"));
        say(&mut terminal, "/exit", "");
        assert_eq!(terminal.code(), Some(0));
        // It may stand before the first prompt too.
        assert!(screen.matches("are not kept").count() <= 1, "{place}: {screen}");
    }
}

#[test]
fn tab_completes_commands_settings_models_and_files() {
    let scratch = Scratch::with("tab", &[("notes.txt", b"The fox is red.")]);
    let mut terminal = chat("-q --temperature 0 -n 4");
    let keys = [
        ("/sh\t", "/show"),
        ("/set te\t0.25", "temperature 0.25"),
        ("/mod\tlan\t", "lantern answers"),
        (&format!("/fi\t{}/no\t", scratch.text()), "15 bytes, with the next question"),
    ];
    for (keys, wanted) in keys {
        terminal.wait_for(">>> ");
        terminal.type_in(keys);
        terminal.type_in("\r");
        terminal.wait_for(wanted);
    }
    terminal.wait_for(">>> ");
    terminal.type_in("/set to\t\t");
    terminal.wait_for("top_k");
    terminal.wait_for("top_p");
    terminal.type_in("\x03");
    say(&mut terminal, "/exit", "");
    assert_eq!(terminal.code(), Some(0));
}

/// The conversation, as `/save` writes it.
fn saved(terminal: &mut Terminal, scratch: &Scratch, name: &str) -> Vec<(String, String)> {
    let path = scratch.file(name);
    say(terminal, &format!("/save {path}"), " messages in ");
    let all: Value = serde_json::from_slice(&fs::read(path).expect("it was written")).expect("JSON");
    let part = |message: &Value, name: &str| message[name].as_str().expect("text").to_owned();
    all.as_array().expect("a list").iter().map(|one| (part(one, "role"), part(one, "content"))).collect()
}

#[test]
fn a_question_takes_files_and_is_asked_again_and_its_answer_copied() {
    let scratch = Scratch::with("asked", &[("notes.txt", b"The fox is red.\n\n"), ("image", b"\xff\xd8")]);
    let mut terminal = chat("-q --temperature 2 --seed 1 -n 24");
    say(&mut terminal, "/retry", "nothing was asked yet");
    say(&mut terminal, "/copy", "there is no answer yet");
    say(&mut terminal, "/file /no/such", "/no/such: ");
    say(&mut terminal, &format!("/file {}", scratch.file("image")), "UTF-8");
    say(&mut terminal, &format!("/file {}", scratch.file("notes.txt")), "15 bytes, with the next question");
    say(&mut terminal, "Which colour?", "\n");
    let first = saved(&mut terminal, &scratch, "first");
    assert_eq!((first.len(), first[0].1.as_str()), (2, "Which colour?\n\nThe fox is red."));
    say(&mut terminal, "/retry", "\n");
    let second = saved(&mut terminal, &scratch, "second");
    assert_eq!((second.len(), &second[0]), (2, &first[0]));
    assert_ne!(second[1], first[1], "another seed gives another answer");
    say(&mut terminal, "/copy", "\x1b]52;c;");
    let base64 = terminal.wait_for("\x07");
    let bytes = second[1].1.len();
    assert!(base64.len() == bytes.div_ceil(3) * 4 && base64.bytes().all(|byte| byte.is_ascii_graphic()), "{base64}");
    terminal.wait_for(&format!("{bytes} bytes to the terminal's clipboard"));
    say(&mut terminal, "And now?", "\n");
    let third = saved(&mut terminal, &scratch, "third");
    assert_eq!((third.len(), third[2].1.as_str()), (4, "And now?"), "a file belongs to one question");
    say(&mut terminal, "/exit", "");
    assert_eq!(terminal.code(), Some(0));
    let mut plain = chat_with("TERM=linux", "-q --temperature 0 -n 4");
    say(&mut plain, "Tell me a story", "\n");
    say(&mut plain, "/copy", "has no clipboard");
    say(&mut plain, "/exit", "");
    assert_eq!(plain.code(), Some(0));
}

#[test]
fn another_model_goes_on_with_what_it_has_room_for() {
    let copy = Scratch::copy_of(&lantern(), "another");
    let mut terminal = chat("-q --temperature 0 -n 8 -c 160");
    say(&mut terminal, "/model /no/such/model", "lantern answers as before");
    say(&mut terminal, "/model org/none", "downloads one of the hub; lantern answers as before");
    say(&mut terminal, "/model lantern", "lantern answers; 160 tokens of context");
    say(&mut terminal, "What is 3 + 4?", "\n");
    let name = copy.file_name().expect("it has one").to_string_lossy().into_owned();
    say(&mut terminal, &format!("/model {}", copy.text()), &format!("{name} answers; the conversation takes"));
    say(&mut terminal, "/show", &format!("model {name}, 2 messages"));
    for _ in 0..2 {
        say(&mut terminal, &"A fox and a lantern. ".repeat(8), "\n");
    }
    let told = say(&mut terminal, "/model lantern", "are sent, and all are kept");
    assert!(told.contains("of 6 messages"), "{told:?}");
    say(&mut terminal, "/show", "are not sent)");
    say(&mut terminal, "What is 3 + 4?", "\n");
    say(&mut terminal, "/show", "8 messages (the oldest");
    say(&mut terminal, "/clear", "");
    say(&mut terminal, "/show", "0 messages\r\n");
    say(&mut terminal, "/exit", "");
    assert_eq!(terminal.code(), Some(0));
}

/// Nothing is measured between an answer and the prompt; while the chat waits it is.
#[test]
fn limits_are_measured_while_the_chat_waits() {
    let cache = Scratch::new("waits");
    let mut terminal = chat_with(&format!("XDG_CACHE_HOME={}", cache.text()), "--temperature 0 -n 8 -t 1");
    terminal.wait_for(">>> ");
    let is_kept = || {
        let kept = cache.join("twostroke/packed").read_dir().into_iter().flatten().flatten();
        kept.into_iter().any(|file| file.path().extension().is_some_and(|extension| extension == "limits"))
    };
    wait("limits to be kept", is_kept);
    terminal.type_in("What is 3 + 4?\r");
    terminal.wait_for(PHASES);
    terminal.wait_for(" of limit");
    say(&mut terminal, "/exit", "");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn words_are_whole_at_the_edge_of_the_terminal() {
    let arguments = ["run", "Tell me a story about a fox and a lantern", "-q", "--temperature", "0", "-n", "150"];
    let piped = run(&mut twostroke(&arguments)).stdout;
    let widest = |text: &str| text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0);
    assert!(widest(&piped) > 100, "pipes have the text as it is: {piped:?}");
    for columns in [100, 40, 20] {
        let command = format!("{} run '{}' -q --temperature 0 -n 150", binary().display(), arguments[1]);
        let mut terminal =
            Terminal::start(&format!("stty rows 40 cols {columns}; {command} 2> /dev/null; echo the end"));
        let shown = terminal.wait_for("the end");
        assert!(widest(&shown) <= columns, "{columns}: {shown:?}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&shown), words(&piped), "{columns}");
    }
}
