//! The chat prompt, on a terminal.

use tests::binary;

use crate::terminal::Terminal;

/// A chat.
fn chat(arguments: &str) -> Terminal {
    // `exec`, for a shell in between would get Ctrl-C as well, and dash then ends with it once the chat is over.
    Terminal::start(&format!("exec {} run {arguments}", binary().display()))
}

#[test]
fn a_conversation_goes_on_and_ends_with_exit() {
    let mut terminal = chat("--temperature 0 -n 8");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 3 + 4?\r");
    let first = terminal.wait_for("bound by");
    assert!(first.contains("prefill") && !first.contains("cached"), "{first:?}");
    terminal.wait_for(">>> ");
    // The second question finds the first one's blocks only if the conversation is sent again with it.
    terminal.type_in(&format!("Thank you{}\r", ", and thank you".repeat(20)));
    terminal.wait_for("bound by");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 5 + 5?\r");
    let third = terminal.wait_for("bound by");
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
    terminal.wait_for("bound by");
    terminal.wait_for(">>> ");
    terminal.type_in("/exit\r");
    assert_eq!(terminal.code(), Some(0));
}

/// Lines that are typed while an answer is written, or the machine measured behind it, are the next turns: all of them.
#[test]
fn lines_that_are_typed_meanwhile_are_the_next_turns() {
    let mut terminal = chat("--temperature 0 -n 8");
    terminal.wait_for(">>> ");
    terminal.type_in("What is 3 + 4?\r");
    terminal.wait_for_signals();
    terminal.type_in("What is 5 + 5?\rWhat is 2 + 2?\r/exit\r");
    for _ in 0..3 {
        terminal.wait_for("bound by");
    }
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
