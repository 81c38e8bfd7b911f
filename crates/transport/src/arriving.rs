//! A request's body on its way in: every body that is read comes through here, and has a limit of bytes, of time without
//! progress and of time as a whole. Who reads it charges what has come to the key that sends it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::error::ApiError;
use crate::prepare_pool::Room;

/// How long the server waits for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For its next byte.
    pub quiet: Duration,
    /// For all of it. Every body that fits the usual limit arrives in it at 300 kB/s.
    pub body: Duration,
    /// For all of a file, which may be much longer: at 120 kB/s.
    pub file: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { quiet: Duration::from_secs(30), body: Duration::from_secs(30), file: Duration::from_secs(30 * 60) }
    }
}

/// See the module's words.
pub struct Arriving {
    body: Body,
    left: u64,
    most: u64,
    quiet: Pin<Box<Sleep>>,
    whole: Pin<Box<Sleep>>,
    /// The limits that those two have.
    limits: [Duration; 2],
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error("more than {0} bytes")]
    TooLarge(u64),
    #[error("nothing came for {} seconds", .0.as_secs())]
    Quiet(Duration),
    #[error("not there after {} seconds", .0.as_secs())]
    Slow(Duration),
    #[error("the connection broke")]
    Broken,
}

impl From<&Unread> for ApiError {
    fn from(unread: &Unread) -> ApiError {
        match unread {
            Unread::TooLarge(most) => ApiError::body_too_large(*most as usize),
            Unread::Quiet(limit) => ApiError::quiet_body(limit.as_secs()),
            Unread::Slow(limit) => ApiError::slow_body(limit.as_secs()),
            // The connection is gone: this is not read.
            Unread::Broken => ApiError::bad_request("The request body could not be read."),
        }
    }
}

impl Arriving {
    /// Of at most `most` bytes, all of them there after `whole`.
    pub fn new(
        headers: &HeaderMap,
        body: Body,
        most: u64,
        quiet: Duration,
        whole: Duration,
    ) -> Result<Arriving, ApiError> {
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|bytes| bytes > most) {
            return Err(ApiError::body_too_large(most as usize));
        }
        let [quiet_sleep, whole_sleep] = [quiet, whole].map(|limit| Box::pin(tokio::time::sleep(limit)));
        Ok(Arriving { body, left: most, most, quiet: quiet_sleep, whole: whole_sleep, limits: [quiet, whole] })
    }
}

impl Arriving {
    /// All of it, charged as it comes. Memory is taken for what has arrived, not for what was announced: a client that
    /// promises much and sends little holds little.
    pub async fn collect(mut self, room: &mut Room) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.frame().await {
            let Ok(data) = frame.map_err(|unread| ApiError::from(&unread))?.into_data() else { continue };
            room.grow(data.len())?;
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Unread;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unread>>> {
        let [quiet, whole] = self.limits;
        // Before the next bytes: there may be some each time.
        if self.whole.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Unread::Slow(whole))));
        }
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(Unread::Broken))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                return self.quiet.as_mut().poll(cx).map(|()| Some(Err(Unread::Quiet(quiet))));
            }
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        if bytes > self.left {
            return Poll::Ready(Some(Err(Unread::TooLarge(self.most))));
        }
        self.left -= bytes;
        if bytes > 0 {
            self.quiet.as_mut().reset(Instant::now() + quiet);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    struct Sent(mpsc::UnboundedReceiver<usize>);

    impl HttpBody for Sent {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(vec![7; bytes].into()))))
        }
    }

    /// What is sent, whether it ends, and how reading it does. No limit here is one that a slow machine could meet: it is
    /// 0, or an hour.
    #[test]
    fn every_body_has_an_end() {
        let (now, hour) = (Duration::ZERO, Duration::from_secs(3600));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        #[allow(clippy::type_complexity, reason = "a table")]
        let cases: [(&str, &[usize], bool, [Duration; 2], &str); 7] = [
            ("whole", &[3, 4, 3], true, [hour, hour], "10"),
            ("nothing", &[], true, [hour, hour], "0"),
            ("stops at once", &[], false, [now, hour], "Quiet(0ns)"),
            ("stops", &[5], false, [now, hour], "Quiet(0ns)"),
            ("drips, or stops, for too long", &[1, 1, 1], false, [hour, now], "Slow(0ns)"),
            ("one byte too many", &[5, 6], true, [hour, hour], "TooLarge(10)"),
            ("never ends", &[5; 100], false, [hour, hour], "TooLarge(10)"),
        ];
        for (name, frames, ends, [quiet, whole], expected) in cases {
            let (sender, receiver) = mpsc::unbounded_channel();
            for &bytes in frames {
                sender.send(bytes).unwrap();
            }
            let _held = (!ends).then_some(sender);
            let seen = runtime.block_on(async {
                let body = Body::new(Sent(receiver));
                let mut body = Arriving::new(&HeaderMap::new(), body, 10, quiet, whole).unwrap();
                let mut bytes = 0;
                loop {
                    match body.frame().await {
                        None => return bytes.to_string(),
                        Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
                        Some(Err(error)) => return format!("{error:?}"),
                    }
                }
            });
            assert_eq!(seen, expected, "{name}");
        }
        let announced = [(header::CONTENT_LENGTH, "11".parse().unwrap())].into_iter().collect();
        runtime.block_on(async {
            assert!(
                Arriving::new(&announced, Body::empty(), 10, hour, hour).is_err(),
                "what was announced is too much"
            );
        });
    }
}
