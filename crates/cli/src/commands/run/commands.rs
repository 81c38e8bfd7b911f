//! The commands of the chat: their names, what Tab completes behind them and what `/help` says.

/// What stands behind a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Text,
    Setting,
    Model,
    Path,
}

/// A command, and what `/help` says of it.
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    argument: &'static str,
    does: &'static str,
}

const fn command(name: &'static str, takes: Takes, argument: &'static str, does: &'static str) -> Command {
    Command { name, takes, argument, does }
}

pub(super) const COMMANDS: [Command; 12] = [
    command(
        "/set",
        Takes::Setting,
        "NAME VALUE",
        "one of the settings that /show lists; without VALUE the model's own",
    ),
    command("/system", Takes::Text, "TEXT", "a system message, from the next conversation on; without TEXT none"),
    command("/show", Takes::Nothing, "", "settings, system message and the length of the conversation"),
    command("/model", Takes::Model, "NAME", "another model of this machine answers from now on"),
    command("/file", Takes::Path, "FILE", "a text that belongs to the next question"),
    command("/retry", Takes::Nothing, "", "the last question again, with a new seed, in place of its answer"),
    command("/copy", Takes::Nothing, "", "the last answer to the terminal's clipboard"),
    command("/save", Takes::Path, "FILE", "write the conversation, as JSON that /load reads"),
    command("/load", Takes::Path, "FILE", "go on with such a conversation"),
    command("/clear", Takes::Nothing, "", "forget the conversation"),
    command("/help", Takes::Nothing, "", "this list"),
    command("/exit", Takes::Nothing, "", "leave (also Ctrl-D)"),
];

/// What `/help` says of other keys.
const KEYS: &str = "\"\"\"              begins and ends a question of several lines
Tab              completes commands, settings, models and files
Ctrl-C           stop the answer and keep the conversation";

/// The list of them, and of keys.
pub(super) fn help() -> String {
    let line = |command: &Command| {
        let usage = format!("{} {}", command.name, command.argument);
        format!("{usage:<17}{}\n", command.does)
    };
    COMMANDS.iter().map(line).chain([KEYS.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_line() {
        for Command { name, .. } in COMMANDS {
            assert!(help().lines().any(|line| line.starts_with(name)), "{name}");
        }
        assert!(help().lines().all(|line| line.as_bytes()[16] == b' ' && line.as_bytes()[17] != b' '), "{}", help());
    }
}
