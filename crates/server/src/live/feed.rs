//! A feed: the body of `GET /live/feed`, which ends with its reader or with the server.
//!
//! Pulled by the connection: every 50 ms it asks what is new and writes it, and while its reader is slow it writes
//! nothing. All text is made here, on a thread of the server ([`telemetry::live_feed`]).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use telemetry::live_feed::{LiveFeed, Wishes};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior};
use transport::auth::Tenant;
use transport::error::ApiError;

use crate::app::App;
use crate::app::MOST_READERS;

/// Between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// One reader's.
pub(crate) struct Feed {
    app: Arc<App>,
    feed: LiveFeed,
    look: Interval,
    _seat: OwnedSemaphorePermit,
}

impl Feed {
    /// A feed from now on.
    pub(crate) fn open(app: Arc<App>, tenant: Option<Tenant>, wishes: Wishes) -> Result<Feed, ApiError> {
        let seat =
            app.permits.readers.clone().try_acquire_owned().map_err(|_| ApiError::too_many_readers(MOST_READERS))?;
        let feed = LiveFeed::new(&*app.engine, tenant, wishes, app.model.tool_format.thinks());
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Feed { app, feed, look, _seat: seat })
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Feed { app, feed, look, .. } = &mut *self;
        loop {
            ready!(look.poll_tick(cx));
            if app.drain.has_begun() {
                return Poll::Ready(None);
            }
            let (text, has_more) = feed.news(&*app.engine, &app.telemetry.registry);
            if has_more {
                look.reset_immediately();
            }
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
    }
}
