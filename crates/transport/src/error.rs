//! Everything that can go wrong in the server, as HTTP. The one file that decides a status.
//!
//! Bodies have OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`. Messages are fixed text with checked
//! numbers in it: no inner error is ever printed, because inner errors carry paths, addresses and prompts.

use std::fmt::Display;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{AdapterError, Rejection, RequestError, SubmitError};
use serde::Serialize;
use serde_json::json;
use text::chat_template::TemplateError;

/// The code by which Anthropic's clients know that a server has no threads.
const NO_THREADS: &str = "thread_unsupported_request";

/// The code of a model that is not served.
const NO_MODEL: &str = "model_not_found";

/// Characters of a place that are told.
const MOST_PLACE: usize = 300;

/// What readers of requests and handlers return.
pub type ApiResult<T> = Result<T, ApiError>;

/// An answer that is not the one asked for.
#[derive(Clone, Debug)]
pub struct ApiError {
    kind: Kind,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    SlowBody,
    Conflict,
    TooLarge,
    UnsupportedMediaType,
    Internal,
    NoStorage,
    NotImplemented,
    /// This tenant has its share: retry after this number of seconds.
    TooMany {
        retry_after_s: u64,
    },
    /// Retry after this number of seconds, on a new connection.
    ShuttingDown {
        retry_after_s: u64,
    },
    /// Retry after this number of seconds.
    Unavailable {
        retry_after_s: u64,
    },
}

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(kind: Kind, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), param: None, code }
    }

    /// 400: the request says something that cannot be done.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::BadRequest, None, message)
    }

    /// 400: what is wrong at a place of a sender's schema, which may be of any length.
    pub fn of_schema(place: &str, problem: &dyn Display) -> ApiError {
        let place: String = place.chars().take(MOST_PLACE).collect();
        ApiError::bad_request(format!("{place}: {problem}.")).with_param(place)
    }

    /// 404: no response of this name is kept for this key.
    pub fn unknown_response() -> ApiError {
        let message = "No response of this name is kept for this key (they are kept for a time, in bounded room).";
        ApiError::new(Kind::NotFound, Some("response_not_found"), message)
    }

    /// 404: there was one, and what is left of it on disk is not it.
    pub fn damaged_response() -> ApiError {
        let message = "What this server has on its disk of this response cannot be read any more.";
        ApiError::new(Kind::NotFound, Some("response_not_found"), message)
    }

    /// 404: the same of the contents of a file.
    pub fn damaged_file() -> ApiError {
        let message = "What this server has on its disk of this file is gone, or was changed there: send it again.";
        ApiError::new(Kind::NotFound, Some("not_found"), message)
    }

    /// 400: a conversation is to be kept by Anthropic's API. Its clients read the code, and send all of it without.
    pub fn no_threads() -> ApiError {
        let message = "This server keeps no threads: send the whole conversation, without 'thread'.";
        ApiError::bad_request(message).with_param("thread").with_code(NO_THREADS)
    }

    /// 404: no kept answer of this key has an item of this name.
    pub fn unknown_item() -> ApiError {
        let message = "No kept response of this key has an item of this name: send the item itself.";
        ApiError::new(Kind::NotFound, Some("item_not_found"), message)
    }

    /// 404: no file or batch of this name, for this key.
    pub fn unknown_object(what: &'static str) -> ApiError {
        ApiError::new(Kind::NotFound, Some("not_found"), format!("No {what} of this name is kept for this key."))
    }

    /// 400: a field that exists in the API and not in this server.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::BadRequest, Some("unsupported_parameter"), message).with_param(param)
    }

    /// 400: a field that this server has never heard of.
    pub fn unknown_parameter(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::BadRequest, Some("unknown_parameter"), message).with_param(param)
    }

    /// 401: no key, or one that is not ours. The same answer for both.
    pub fn unauthorized() -> ApiError {
        let message = "Missing or incorrect API key: send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'.";
        ApiError::new(Kind::Unauthorized, Some("invalid_api_key"), message)
    }

    /// 403: not allowed by the server's options.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::Forbidden, Some(code), message)
    }

    /// 400: HTTP/1.1 wants one `Host`, and it must name something.
    pub fn bad_host() -> ApiError {
        let message = "A request needs exactly one 'Host' header that names this server.";
        ApiError::new(Kind::BadRequest, Some("bad_host"), message)
    }

    /// 403: a name that is not this server's. It is not repeated.
    pub fn unknown_host() -> ApiError {
        let message = "The 'Host' of this request is not a name that this server knows: ask by IP address or as localhost, or \
            start the server with --allowed-host NAME (or with keys, --api-key, which serve every name).";
        ApiError::forbidden("unknown_host", message)
    }

    /// 403: a browser asks on behalf of another site's page.
    pub fn cross_origin() -> ApiError {
        let message =
            "A page of another origin asked for this: start the server with --allowed-origin ORIGIN if it may.";
        ApiError::forbidden("cross_origin", message)
    }

    /// 404: a model that is not served here. Its name is not repeated: it may be a megabyte long. `near`: names that it
    /// may stand for.
    pub fn unknown_model(near: &[String]) -> ApiError {
        let near = match near {
            [] => String::new(),
            near => format!("near its name: {}; ", near.join(", ")),
        };
        let message =
            format!("This server does not serve the model asked for; {near}GET /v1/models lists what it serves.");
        ApiError::new(Kind::NotFound, Some(NO_MODEL), message).with_param("model")
    }

    /// Whether it is [`ApiError::unknown_model`].
    pub fn is_unknown_model(&self) -> bool {
        self.code == Some(NO_MODEL)
    }

    /// 404: no such route.
    pub fn unknown_route() -> ApiError {
        ApiError::new(Kind::NotFound, Some("unknown_url"), "There is nothing at this URL.")
    }

    /// 404: a route of an API that this server speaks in part, and what to do instead.
    pub fn absent_route(message: &'static str) -> ApiError {
        ApiError::new(Kind::NotFound, Some("unknown_url"), message)
    }

    /// 404: a request that is not, or no longer, known to this caller. Its name is not repeated.
    pub fn unknown_request() -> ApiError {
        let message = "No request of this name is known: give the 'id' of an answer or its X-Request-Id, of one of the \
            last requests made with the same API key.";
        ApiError::new(Kind::NotFound, Some("request_not_found"), message)
    }

    /// 405: the route exists, the method does not.
    pub fn method_not_allowed() -> ApiError {
        let message = "This URL does not take this method.";
        ApiError::new(Kind::MethodNotAllowed, Some("method_not_supported"), message)
    }

    /// 408: the body did not arrive in time.
    pub fn slow_body(limit_s: u64) -> ApiError {
        let message = format!("The request body did not arrive within {limit_s} seconds.");
        ApiError::new(Kind::SlowBody, Some("request_timeout"), message)
    }

    /// 408: none of the body came for so long.
    pub fn quiet_body(limit_s: u64) -> ApiError {
        let message = format!("Nothing of the request body arrived for {limit_s} seconds.");
        ApiError::new(Kind::SlowBody, Some("request_timeout"), message)
    }

    /// 429: files that one key sends at a time.
    pub fn too_many_sent(most: usize) -> ApiError {
        let message = format!("This API key is sending {most} files already: wait for one to end.");
        ApiError::new(Kind::TooMany { retry_after_s: 5 }, Some("too_many_files"), message)
    }

    /// 413: the body is longer than the limit.
    pub fn body_too_large(limit_bytes: usize) -> ApiError {
        let message = format!("The request body is larger than this server's limit of {limit_bytes} bytes.");
        ApiError::new(Kind::TooLarge, Some("request_too_large"), message)
    }

    /// 415: not JSON, or JSON in some wrapping.
    pub fn unsupported_media_type(message: &'static str) -> ApiError {
        ApiError::new(Kind::UnsupportedMediaType, Some("unsupported_media_type"), message)
    }

    /// 500: a bug of ours.
    pub fn internal() -> ApiError {
        ApiError::new(Kind::Internal, None, "An internal error ended this request.")
    }

    /// 507: an answer that has to be kept cannot be written.
    pub fn not_kept() -> ApiError {
        let message = "The answer cannot be kept: the server cannot write to its store. Send 'store': false to get \
                       answers that are not kept.";
        ApiError::new(Kind::NoStorage, Some("not_kept"), message)
    }

    /// 507: an answer that is larger than all that is kept.
    pub fn too_large_to_keep(most: usize) -> ApiError {
        let message = format!(
            "The answer and its conversation are larger than all that this server keeps ({} MiB): begin a new \
             conversation, or send 'store': false.",
            most >> 20
        );
        ApiError::new(Kind::NoStorage, Some("not_kept"), message)
    }

    /// 507: the directory of files and batches cannot be written.
    pub fn unwritable() -> ApiError {
        let message = "This cannot be kept: the server cannot write to its directory of files and batches.";
        ApiError::new(Kind::NoStorage, Some("not_kept"), message)
    }

    /// 500: the digest of the weights cannot be taken.
    pub fn no_receipts() -> ApiError {
        let message = "The files of this server's weights have changed or are gone, so it can give no receipts.";
        ApiError::new(Kind::Internal, Some("no_receipts"), message).with_param("receipt")
    }

    /// 501: models come and go with the server, not by a request.
    pub fn fixed_models() -> ApiError {
        let message =
            "This server serves the model that it was started with: start it with another one (-m) to serve that.";
        ApiError::new(Kind::NotImplemented, Some("models_are_fixed"), message)
    }

    /// 403: models are downloaded and removed where the operator allows it.
    pub fn pulls_forbidden() -> ApiError {
        let message = "This server lets no request download or remove models: start it with --allow-pull, or use \
                       'twostroke pull' and 'twostroke rm' where it runs.";
        ApiError::forbidden("pull_not_allowed", message)
    }

    /// 404: no model to download or to remove.
    pub fn no_such_model(message: String) -> ApiError {
        ApiError::new(Kind::NotFound, Some(NO_MODEL), message).with_param("model")
    }

    /// 409: it cannot be done as long as something else goes on.
    pub fn model_in_use(message: String) -> ApiError {
        ApiError::new(Kind::Conflict, Some("model_in_use"), message).with_param("model")
    }

    /// 507: the disk has no room for a model.
    pub fn no_room_on_disk(message: String) -> ApiError {
        ApiError::new(Kind::NoStorage, Some("disk_full"), message).with_param("model")
    }

    /// 400: a model that there is no room for.
    pub fn model_too_large(message: String) -> ApiError {
        ApiError::new(Kind::BadRequest, Some("model_too_large"), message).with_param("model")
    }

    /// 503: a model that there is, and that cannot be loaded now.
    pub fn model_failed(message: String) -> ApiError {
        ApiError::new(Kind::Unavailable { retry_after_s: 30 }, Some("model_failed"), message).with_param("model")
    }

    /// 404: who looks at a model loads none.
    pub fn model_not_loaded(name: &str) -> ApiError {
        let message = format!("{name} is not in memory: a request to it loads it.");
        ApiError::new(Kind::NotFound, Some("model_not_loaded"), message).with_param("model")
    }

    pub fn shutting_down() -> ApiError {
        let kind = Kind::ShuttingDown { retry_after_s: 5 };
        ApiError::new(kind, Some("shutting_down"), "This server is shutting down.")
    }

    /// 503: what computes is gone.
    pub fn device_lost() -> ApiError {
        let message = "The device that computes is lost, and there is no other: this server has to be restarted.";
        ApiError::new(Kind::Unavailable { retry_after_s: 60 }, Some("device_lost"), message)
    }

    /// 503: a prefill-only worker.
    pub fn only_reads() -> ApiError {
        let message = "This worker reads prompts for others (its role is prefill): send requests to one that answers.";
        ApiError::new(Kind::Unavailable { retry_after_s: 60 }, Some("only_reads"), message)
    }

    /// 503: more work than fits.
    pub fn overloaded(retry_after_s: u64) -> ApiError {
        let kind = Kind::Unavailable { retry_after_s };
        ApiError::new(kind, Some("overloaded"), "This server's queue is full.")
    }

    /// 429: as much waits for this key as may, and others still get in.
    pub fn share_taken(waiting_requests: usize, retry_after_s: u64) -> ApiError {
        let kind = Kind::TooMany { retry_after_s };
        let message = format!("{waiting_requests} requests of this API key wait, which is its share of the queue.");
        ApiError::new(kind, Some("rate_limit_exceeded"), message)
    }

    /// 429: this key's open answers take as much memory as they leave free for those of others.
    pub fn answers_share_taken(retry_after_s: u64) -> ApiError {
        let message = "The open answers of this API key hold its share of the memory for answers.";
        ApiError::new(Kind::TooMany { retry_after_s }, Some("rate_limit_exceeded"), message)
    }

    /// 400: more than this server ever sets aside for one request.
    pub fn answer_too_large(bytes: u64, most: u64) -> ApiError {
        let message = format!(
            "The answers may take {} MiB and this server sets aside {} MiB at most: ask for fewer answers, tokens or log \
             probabilities ('n', 'max_tokens', 'top_logprobs'), or for a stream.",
            bytes.div_ceil(1 << 20),
            most >> 20
        );
        ApiError::new(Kind::BadRequest, Some("answer_too_large"), message).with_param("max_tokens")
    }

    /// 503: as many watch already as may.
    pub fn too_many_readers(most: usize) -> ApiError {
        let kind = Kind::Unavailable { retry_after_s: 10 };
        ApiError::new(kind, Some("too_many_readers"), format!("{most} feeds are open already: close one of them."))
    }

    /// 503: the machine had no processor, thread or process for it.
    pub fn machine_busy(message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::Unavailable { retry_after_s: 2 }, Some("machine_busy"), message)
    }

    /// 503: one simulation at a time.
    pub fn simulating() -> ApiError {
        let kind = Kind::Unavailable { retry_after_s: 2 };
        ApiError::new(kind, Some("simulating"), "Another simulation is running: one at a time.")
    }

    /// 503: one trace at a time.
    pub fn tracing() -> ApiError {
        let kind = Kind::Unavailable { retry_after_s: 2 };
        ApiError::new(kind, Some("tracing"), "Another trace is being written: one at a time.")
    }

    /// 503: that its first token comes in time cannot be promised now.
    pub fn late(likely: Duration, promised: Duration, target: Duration, retry_after: Duration) -> ApiError {
        // Rounded up: who comes back a moment too early is refused again.
        let retry_after_s = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        let kind = Kind::Unavailable { retry_after_s };
        let message = format!(
            "The first token would come after about {} ms, and can be promised within {} ms; the target is {} ms: try \
             again later, or send a larger 'ttft_slo_ms'.",
            likely.as_millis(),
            promised.as_millis(),
            target.as_millis()
        );
        ApiError::new(kind, Some("late"), message)
    }

    /// Names the field at fault.
    pub fn with_param(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    /// Names the kind of fault.
    pub fn with_code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// Renames the field at fault, where `RawRequest` calls it by another name than the API. What is said of it most often
    /// begins with its name.
    pub fn rename_param(mut self, from: &str, to: &str) -> ApiError {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
            if let Some(rest) = self.message.strip_prefix(from).filter(|rest| rest.starts_with([' ', ':'])) {
                self.message = format!("{to}{rest}");
            }
        }
        self
    }

    /// What a log says of it: the kind of fault and the field, and nothing that a client wrote at length.
    pub fn short_reason(&self) -> String {
        let code = self.code.unwrap_or(if self.kind == Kind::BadRequest { "bad_request" } else { "error" });
        match &self.param {
            Some(param) => format!("{code}: {}", param.chars().take(64).collect::<String>()),
            None => code.to_owned(),
        }
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The status of its answer.
    pub fn status(&self) -> StatusCode {
        match self.kind {
            Kind::BadRequest => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::NoStorage => StatusCode::INSUFFICIENT_STORAGE,
            Kind::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Kind::ShuttingDown { .. } | Kind::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The body, as one line of JSON: also what an event of a stream carries once headers are gone.
    pub fn json(&self) -> String {
        self.json_in(ErrorFormat::OpenAi)
    }

    /// The same in the format of one API.
    pub fn json_in(&self, format: ErrorFormat) -> String {
        let error = match format {
            ErrorFormat::OpenAi => {
                let r#type = match self.kind {
                    Kind::Internal | Kind::NoStorage => "server_error",
                    Kind::ShuttingDown { .. } | Kind::Unavailable { .. } => "server_error",
                    _ => "invalid_request_error",
                };
                let inner = Inner { message: &self.message, r#type, param: self.param.as_deref(), code: self.code };
                return serde_json::to_string(&Body { error: inner }).expect("strings serialize");
            }
            ErrorFormat::Anthropic => {
                let r#type = match self.kind {
                    Kind::Unauthorized => "authentication_error",
                    Kind::Forbidden => "permission_error",
                    Kind::NotFound => "not_found_error",
                    Kind::TooLarge => "request_too_large",
                    Kind::TooMany { .. } => "rate_limit_error",
                    Kind::ShuttingDown { .. } | Kind::Unavailable { .. } => "overloaded_error",
                    Kind::Internal | Kind::NoStorage => "api_error",
                    _ => "invalid_request_error",
                };
                let mut error = json!({"type": r#type, "message": self.with_field()});
                if self.code == Some(NO_THREADS) {
                    error["details"] = json!({"error_code": NO_THREADS, "unsupported": ["thread"]});
                }
                json!({"type": "error", "error": error})
            }
            ErrorFormat::Ollama => json!({"error": self.with_field()}),
        };
        error.to_string()
    }

    /// The message, with the field at fault where it does not name it itself: for who has no place for that.
    fn with_field(&self) -> String {
        match &self.param {
            Some(param) if !param.is_empty() && !self.message.contains(param.as_str()) => {
                format!("{param}: {}", self.message)
            }
            _ => self.message.clone(),
        }
    }

    /// The answer in the format of one API.
    pub fn render_as(self, format: ErrorFormat) -> Response {
        let mut response = (self.status(), self.json_in(format)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.kind {
            Kind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Kind::ShuttingDown { retry_after_s } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s));
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Kind::Unavailable { retry_after_s } | Kind::TooMany { retry_after_s } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s));
            }
            // What is left of the body is not read, so the connection cannot be used again.
            Kind::SlowBody | Kind::TooLarge => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// The API in whose format an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ErrorFormat {
    /// The error format of the API that has this path, if it is not OpenAI's.
    pub fn of(path: &str, headers: &HeaderMap) -> Option<ErrorFormat> {
        let is = |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        match () {
            () if is("/v1/messages") => Some(ErrorFormat::Anthropic),
            () if is("/v1/models") && ErrorFormat::are_anthropics(headers) => Some(ErrorFormat::Anthropic),
            () if is("/api") => Some(ErrorFormat::Ollama),
            () => None,
        }
    }

    /// Whether a client of Anthropic's asks, of a path that several APIs have.
    pub fn are_anthropics(headers: &HeaderMap) -> bool {
        headers.contains_key("anthropic-version")
    }
}

impl IntoResponse for ApiError {
    /// In OpenAI's format; with itself for the layer that renders it in another ([`ApiError::render_as`]).
    fn into_response(self) -> Response {
        let mut response = self.clone().render_as(ErrorFormat::OpenAi);
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::QueueFull { retry_after, .. } => ApiError::overloaded(retry_after.as_secs().max(1)),
            SubmitError::TenantQueueFull { waiting_requests, retry_after } => {
                ApiError::share_taken(waiting_requests, retry_after.as_secs().max(1))
            }
            SubmitError::Late { likely, promised, target, retry_after } => {
                ApiError::late(likely, promised, target, retry_after)
            }
            SubmitError::ShuttingDown => ApiError::shutting_down(),
            SubmitError::DeviceLost => ApiError::device_lost(),
            SubmitError::PrefillOnly => ApiError::only_reads(),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        match error {
            RequestError::NanLogits => {
                let message = "The model produced values that are not numbers for this request.";
                ApiError::new(Kind::Internal, Some("nan_logits"), message)
            }
            RequestError::Rule(error) => {
                let message = format!("The answer cannot go on as it was asked to look: {error}.");
                ApiError::new(Kind::BadRequest, Some("rule_unsatisfiable"), message)
            }
            RequestError::SlowReader => {
                let message = "The answer was not read as fast as it was written.";
                ApiError::new(Kind::SlowBody, Some("slow_reader"), message)
            }
            RequestError::Internal => ApiError::internal(),
            RequestError::Handoff => {
                let message = "Two workers computed different tokens for this request: one of them is at fault.";
                ApiError::new(Kind::Internal, Some("handoff_mismatch"), message)
            }
            RequestError::NoPrefill => {
                let message = "No worker reads this prompt now, and weights of another precision (--handoff-precision) \
                               would not give the same answer.";
                ApiError::new(Kind::Unavailable { retry_after_s: 2 }, Some("no_prefill_worker"), message)
            }
            RequestError::ShuttingDown => ApiError::shutting_down(),
            RequestError::DeviceLost => ApiError::device_lost(),
            RequestError::AdapterLost => {
                let message =
                    "The adapter's files have changed, and the device it was loaded on is lost: load it again.";
                ApiError::new(Kind::Conflict, Some("adapter_lost"), message)
            }
            RequestError::Refused(refused) => refused.into(),
        }
    }
}

/// What is wrong with an adapter's files is said as it is: a client that may name a directory here has to know.
impl From<AdapterError> for ApiError {
    fn from(error: AdapterError) -> ApiError {
        let (kind, code) = match &error {
            AdapterError::Unknown { .. } => (Kind::NotFound, "adapter_not_found"),
            AdapterError::InUse { .. } => (Kind::Conflict, "adapter_in_use"),
            AdapterError::Stopped => return ApiError::shutting_down(),
            AdapterError::Unsupported => (Kind::NotImplemented, "adapters_not_supported"),
            AdapterError::Exists { .. } => (Kind::BadRequest, "adapter_exists"),
            AdapterError::NoRoom | AdapterError::Full { .. } => (Kind::BadRequest, "too_many_adapters"),
            AdapterError::Name => (Kind::BadRequest, "bad_adapter_name"),
            AdapterError::Load { .. } => (Kind::BadRequest, "bad_adapter"),
        };
        let param = if code == "bad_adapter" { "lora_path" } else { "lora_name" };
        ApiError::new(kind, Some(code), error.to_string()).with_param(param)
    }
}

/// 503 where the machine is at fault, else 400 with the field.
impl From<&TemplateError> for ApiError {
    fn from(error: &TemplateError) -> ApiError {
        // These errors are made of fixed text, except for what the template itself says.
        match error.is_machine_fault() {
            true => ApiError::machine_busy(format!("{error}.")),
            false => ApiError::bad_request(format!("{error}.")).with_param(error.param()),
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> ApiError {
        if rejection.is_machines() {
            return ApiError::machine_busy(rejection.message);
        }
        // An adapter that was unloaded while the request was read.
        if rejection.code == Some(NO_MODEL) {
            return ApiError::unknown_model(&[]);
        }
        let error = ApiError::new(Kind::BadRequest, rejection.code, rejection.message);
        match rejection.param {
            Some(param) => error.with_param(param),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_called_what_its_sender_calls_it() {
        for (message, renamed) in [
            ("max_tokens must be at least 1", "n_predict must be at least 1"),
            ("max_tokens: at least 1", "n_predict: at least 1"),
            ("max_tokens_at_most is another", "max_tokens_at_most is another"),
            ("at most 16 of them", "at most 16 of them"),
        ] {
            let error = ApiError::bad_request(message).with_param("max_tokens");
            let told = error.clone().rename_param("max_tokens", "n_predict");
            assert_eq!((told.message(), told.param()), (renamed, Some("n_predict")));
            let other = error.rename_param("logprobs", "n_probs");
            assert_eq!((other.message(), other.param()), (message, Some("max_tokens")));
        }
    }

    #[test]
    fn an_adapter_that_is_gone_is_an_unknown_model() {
        let rejection = Rejection { code: Some("model_not_found"), ..Rejection::of("model", "gone") };
        assert_eq!(ApiError::from(rejection).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn what_the_machine_did_is_no_fault_of_the_request() {
        for (error, status) in [
            (TemplateError::NoProcessor, StatusCode::SERVICE_UNAVAILABLE),
            (TemplateError::NoThread, StatusCode::SERVICE_UNAVAILABLE),
            (TemplateError::NoProcess, StatusCode::SERVICE_UNAVAILABLE),
            (TemplateError::TooSlow, StatusCode::BAD_REQUEST),
            (TemplateError::OutOfMemory, StatusCode::BAD_REQUEST),
            (TemplateError::ProcessEnded, StatusCode::BAD_REQUEST),
        ] {
            let told = ApiError::from(&error);
            assert_eq!(told.status(), status, "{error}");
            assert_eq!(told.param(), (status == StatusCode::BAD_REQUEST).then_some("messages"), "{error}");
            let code = (status != StatusCode::BAD_REQUEST).then_some("machine_busy");
            let rejection = Rejection { code, ..Rejection::of("messages", error.to_string()) };
            assert_eq!(ApiError::from(rejection).status(), status, "{error}");
        }
    }
}
