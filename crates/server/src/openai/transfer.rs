//! `kv_transfer_params`: a router sends a request's prompt to one worker and the request to another, in vLLM's words.
//!
//! ```text
//! router -- do_remote_decode, max_tokens 1 --> prefill worker: reads the prompt
//!        <- do_remote_prefill, where, seal --
//!        -- the same, with the request -----> decode worker: has the blocks from there, and answers
//! ```
//! So it is spoken by vLLM's routers and by llm-d. An address that a client names is not enough: it has a seal
//! ([`engine::SignedAddress`]).

use engine::{RemoteRole, SignedAddress};
use serde::Serialize;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use crate::answers::ResponseOptions;
use crate::app::App;

/// What a worker that has read a prompt says of it.
#[derive(Serialize)]
pub(crate) struct WireTransfer<'a> {
    do_remote_prefill: bool,
    do_remote_decode: bool,
    remote_host: &'a str,
    remote_port: u16,
    seal: &'a str,
}

impl<'a> WireTransfer<'a> {
    pub(crate) fn of(at: &'a SignedAddress) -> WireTransfer<'a> {
        let SignedAddress { host, port, seal } = at;
        WireTransfer { do_remote_prefill: true, do_remote_decode: false, remote_host: host, remote_port: *port, seal }
    }
}

const FIELD: &str = "kv_transfer_params";

/// What another worker has to do with the request; where it is only to be read here, the answer says where that is.
pub(crate) fn read(fields: &mut Fields, app: &App, delivery: &mut ResponseOptions) -> Result<RemoteRole, ApiError> {
    let Some(mut params) = fields.object(FIELD)? else { return Ok(RemoteRole::Any) };
    let is_read_here = params.boolean("do_remote_decode")?.unwrap_or(false);
    let is_read_there = params.boolean("do_remote_prefill")?.unwrap_or(false);
    let names = ["remote_host", "remote_port", "seal"].map(|name| params.name(name));
    let (host, port) = (params.string("remote_host")?, params.integer("remote_port")?);
    let seal = params.string("seal")?;
    params.finish()?;
    match (is_read_here, is_read_there) {
        (false, false) => Ok(RemoteRole::Any),
        (true, true) => {
            let message = format!("'{FIELD}': a prompt is read here or elsewhere, and not both.");
            Err(ApiError::bad_request(message).with_param(FIELD))
        }
        (true, false) => {
            if delivery.stream {
                return Err(ApiError::unsupported("stream", "the answer of a prompt that is read for others is whole"));
            }
            let why = "this server reads no prompts for others: serve --handoff-listen";
            let own = app.engine.signed_address().ok_or_else(|| ApiError::unsupported(FIELD, why))?;
            delivery.gives = Some(own);
            Ok(RemoteRole::Decode)
        }
        (false, true) if !app.engine.has_remote_prefill() => {
            let why = "this server has no prompts read by others: serve --role decode, or --prefill-workers";
            Err(ApiError::unsupported(FIELD, why))
        }
        (false, true) => {
            let [host_name, port_name, seal_name] = names;
            let host = host.ok_or_else(|| wrong_type(host_name, "a string"))?;
            let port = port.and_then(|port| u16::try_from(port).ok()).ok_or_else(|| wrong_type(port_name, "a port"))?;
            let seal = seal.ok_or_else(|| wrong_type(&seal_name, "a string"))?;
            app.engine.prefill_worker(&SignedAddress { host, port, seal }).ok_or_else(|| {
                let message = format!("'{FIELD}' names a worker that does not have the cluster key of this server.");
                ApiError::bad_request(message).with_param(seal_name)
            })
        }
    }
}
