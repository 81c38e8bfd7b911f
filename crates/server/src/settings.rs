//! What the options say about requests. Keys are not among it: [`transport::auth`] keeps digests of them, and nothing their text.

use std::sync::Arc;
use std::time::Duration;

use transport::arriving::Patience;
use transport::auth::HoldToken;

use crate::ServerOptions;

/// Fields as in [`ServerOptions`].
pub(crate) struct Settings {
    pub(crate) runtime_adapters: bool,
    pub(crate) ui: bool,
    /// Empty, or `/...` without a slash at its end.
    pub(crate) root_path: Arc<str>,
    pub(crate) cut_max_tokens: bool,
    pub(crate) max_logprobs: i64,
    pub(crate) trust_request_chat_template: bool,
    pub(crate) hold_token: Option<HoldToken>,
    pub(crate) pause_limit: Duration,
    pub(crate) body_limit: usize,
    pub(crate) patience: Patience,
}

impl Settings {
    pub(crate) fn new(options: &ServerOptions) -> Settings {
        Settings {
            runtime_adapters: options.runtime_adapters,
            ui: options.ui,
            root_path: options.root_path.trim_end_matches('/').into(),
            cut_max_tokens: options.cut_max_tokens,
            max_logprobs: options.max_logprobs,
            trust_request_chat_template: options.trust_request_chat_template,
            hold_token: options.hold_token.as_deref().map(HoldToken::new),
            pause_limit: options.pause_limit,
            body_limit: options.body_limit,
            patience: options.patience,
        }
    }
}
