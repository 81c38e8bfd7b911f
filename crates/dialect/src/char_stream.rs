//! The character stream of one answer: unread input, held characters, and emitted parts.
//!
//! ```text
//!   input ──take──► held ──emit_held──► Text or Thought      every character of an answer is in exactly one place
//!     │              ├─begin, drop_mark► a mark: dropped     (or, if only complete calls count, in `raw` until the call
//!     └─emit_arguments┴────────────────► Arguments           ends)
//! ```
//!
//! A family's syntax is an `async fn` that takes one character after another and waits if there is none yet: a
//! coroutine. So it reads like its grammar, and the pieces of an answer cannot matter, because only the next
//! character is accessible. It is polled after each push; there is no runtime and no waker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::AnswerPart;
use crate::mark_filter::MarkFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The next character does not fit. It is not taken, and may be parsed as text.
    Malformed,
    /// The answer is over.
    Ended,
}

pub(crate) type Read<T> = Result<T, Stop>;

/// Return type of a parser of a whole answer, which ends only by [`Stop`].
pub(crate) enum Never {}

/// What precedes white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The beginning of the answer, or a thought.
    Mark,
    Call,
    Text,
}

/// State of the stream: see the module.
pub(crate) struct StreamState {
    input: VecDeque<char>,
    ended: bool,
    held: String,
    parts: Vec<AnswerPart>,
    thinking: bool,
    behind: Behind,
    /// White space after a mark: text, if text follows.
    layout: String,
    /// Number of calls that began.
    calls: usize,
    /// The open call.
    open: Option<usize>,
    /// Calls that began and cannot end.
    broken: usize,
    /// Emit only complete calls.
    patient: bool,
    /// If patient: the text of the open call, and its parts.
    raw: String,
    tentative: Vec<AnswerPart>,
    /// Characters pushed, and those taken and not put back.
    pushed: usize,
    away: usize,
    /// Ranges of them parsed as thoughts since the last query.
    thought: Vec<Range<usize>>,
    /// Position at which a thought was closed from outside.
    cut: Option<usize>,
    /// Filter for all text after it, up to that of a form.
    filter: MarkFilter,
    /// Whether text is of a form.
    formed: bool,
    /// For tests: number of character inspections, including repeated ones.
    #[cfg(test)]
    steps: usize,
}

impl StreamState {
    /// Number of classified characters: those before the held ones.
    fn num_classified(&self) -> usize {
        self.pushed.saturating_sub(self.input.len() + self.held.chars().count() + self.away)
    }

    /// Whether a thought was closed from outside before the held characters.
    fn is_cut(&self) -> bool {
        self.cut.is_some_and(|cut| self.num_classified() >= cut)
    }

    fn note_thought(&mut self, text: &str) {
        let end = self.num_classified();
        let start = end.saturating_sub(text.chars().count());
        match self.thought.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.thought.push(start..end),
        }
    }

    fn emit(&mut self, part: AnswerPart) {
        let to = if self.patient && self.open.is_some() { &mut self.tentative } else { &mut self.parts };
        push(to, part);
    }

    /// Counts an inspection, for tests.
    fn count(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    /// Emits text, or a thought inside one.
    pub(crate) fn emit_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.thinking {
            self.note_thought(text);
            return self.emit(AnswerPart::Thought(text.to_owned()));
        }
        if !self.is_cut() || self.is_in_form() {
            return self.emit_visible(text);
        }
        for (at, c) in text.char_indices() {
            let shown = self.filter.filter(c.encode_utf8(&mut [0; 4]));
            self.emit_visible(&shown);
            if self.is_in_form() {
                let held = self.filter.interrupt();
                return self.emit_visible(&format!("{held}{}", &text[at + c.len_utf8()..]));
            }
        }
    }

    /// Whether the form's own text has begun: a mark in it is a part of it.
    fn is_in_form(&self) -> bool {
        self.formed && self.behind == Behind::Text
    }

    fn emit_visible(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.behind != Behind::Text {
            if text.chars().all(char::is_whitespace) {
                return self.layout.push_str(text);
            }
            self.behind = Behind::Text;
            let layout = std::mem::take(&mut self.layout);
            self.emit_visible(&layout);
        }
        self.emit(AnswerPart::Text(text.to_owned()));
    }

    /// Emits a piece of arguments for the text `read`.
    pub(crate) fn emit_arguments(&mut self, index: usize, read: &str, json: &str) {
        if self.patient {
            self.raw.push_str(read);
        }
        if !json.is_empty() {
            self.emit(AnswerPart::Arguments { index, json: json.to_owned() });
        }
    }

    fn emit_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.emit_text(&held);
    }

    fn next(&mut self) {
        let c = self.input.pop_front().expect("it was looked at");
        self.held.push(c);
    }

    fn is_fresh(&self) -> bool {
        self.behind != Behind::Text && !self.filter.is_holding()
    }

    /// The open call is not a call. Text of it that was not emitted becomes text.
    fn abandon(&mut self, is_over: bool) {
        if self.open.take().is_some() {
            self.behind = Behind::Text;
            self.broken += 1;
            if self.patient {
                self.calls -= 1;
                self.tentative.clear();
                let raw = std::mem::take(&mut self.raw);
                self.emit_text(&raw);
            } else if is_over {
                self.held.clear();
            }
        }
        self.emit_held();
    }
}

/// Adds a part, joined to the last one if both are of one kind.
pub(crate) fn push(parts: &mut Vec<AnswerPart>, part: AnswerPart) {
    match (parts.last_mut(), &part) {
        (Some(AnswerPart::Text(last)), AnswerPart::Text(more))
        | (Some(AnswerPart::Thought(last)), AnswerPart::Thought(more)) => last.push_str(more),
        (Some(AnswerPart::Arguments { index: last, json }), AnswerPart::Arguments { index, json: more })
            if last == index =>
        {
            json.push_str(more);
        }
        _ => parts.push(part),
    }
}

/// Destination of pieces of arguments.
pub(crate) enum Sink<'a> {
    /// Emitted as parts of this call.
    Call(usize),
    /// Held, because the name is not known yet.
    Kept(&'a mut String),
}

/// The handle that the parser and its coroutine share.
#[derive(Clone)]
pub(crate) struct CharStream(Arc<Mutex<StreamState>>);

impl CharStream {
    /// `filtered`: marks to filter after a thought that was closed from outside.
    pub(crate) fn new(thinking: bool, patient: bool, formed: bool, filtered: Vec<&'static str>) -> CharStream {
        CharStream(Arc::new(Mutex::new(StreamState {
            input: VecDeque::new(),
            ended: false,
            held: String::new(),
            parts: Vec::new(),
            thinking,
            behind: Behind::Mark,
            layout: String::new(),
            calls: 0,
            open: None,
            broken: 0,
            patient,
            raw: String::new(),
            tentative: Vec::new(),
            pushed: 0,
            away: 0,
            thought: Vec::new(),
            cut: None,
            filter: MarkFilter::new(filtered),
            formed,
            #[cfg(test)]
            steps: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Calls of the parser.

    pub(crate) fn push(&self, text: &str) {
        let mut state = self.state();
        let before = state.input.len();
        state.input.extend(text.chars());
        state.pushed += state.input.len() - before;
    }

    pub(crate) fn cut(&self, at: usize) {
        self.state().cut = Some(at);
    }

    /// See [`StreamState::is_cut`].
    pub(crate) fn is_cut(&self) -> bool {
        self.state().is_cut()
    }

    pub(crate) fn num_classified(&self) -> usize {
        self.state().num_classified()
    }

    pub(crate) fn thought(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.state().thought)
    }

    pub(crate) fn end(&self) {
        self.state().ended = true;
    }

    pub(crate) fn take_parts(&self, parts: &mut Vec<AnswerPart>) {
        for part in self.state().parts.drain(..) {
            push(parts, part);
        }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        self.state().thinking
    }

    /// Number of calls that began, and whether all of them ended.
    pub(crate) fn calls(&self) -> (usize, bool) {
        let state = self.state();
        (state.calls, state.open.is_none() && state.broken == 0)
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.state().steps
    }

    // Calls of a syntax.

    /// The next character, `None` at the end of the answer.
    async fn look(&self) -> Option<char> {
        poll_fn(|_| {
            let mut state = self.state();
            state.count();
            match state.input.front() {
                Some(&c) => Poll::Ready(Some(c)),
                None if state.ended => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The next character, without taking it.
    pub(crate) async fn peek(&self) -> Read<char> {
        self.look().await.ok_or(Stop::Ended)
    }

    /// The character at offset `by`, without taking any. `None` after the end of the answer.
    pub(crate) async fn ahead(&self, by: usize) -> Option<char> {
        poll_fn(|_| {
            let mut state = self.state();
            state.count();
            match state.input.get(by) {
                Some(&c) => Poll::Ready(Some(c)),
                None if state.ended => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The mark at offset `by`, if any, and the offset of its end. Takes nothing.
    pub(crate) async fn mark_at<'m>(&self, by: usize, marks: &[&'m str]) -> Option<(&'m str, usize)> {
        for &mark in marks {
            let mut at = by;
            for c in mark.chars() {
                if self.ahead(at).await != Some(c) {
                    break;
                }
                at += 1;
            }
            if at == by + mark.chars().count() && !mark.is_empty() {
                return Some((mark, at));
            }
        }
        None
    }

    /// Offset of the first character at or after `by` that is not white space. Takes nothing.
    pub(crate) async fn behind_space(&self, mut by: usize) -> usize {
        while self.ahead(by).await.is_some_and(char::is_whitespace) {
            by += 1;
        }
        by
    }

    /// Takes the inspected character.
    pub(crate) fn take(&self) {
        self.state().next();
    }

    /// Takes `count` inspected characters.
    pub(crate) fn take_many(&self, count: usize) {
        let mut state = self.state();
        (0..count).for_each(|_| state.next());
    }

    /// Takes repetitions of the marks, with the white space before each; none if a mark does not come, or if one of `others`
    /// with the same beginning does.
    pub(crate) async fn skip_repeats(&self, marks: &[&'static str], others: &[&'static str]) {
        loop {
            let at = self.behind_space(0).await;
            if self.mark_at(at, others).await.is_some() {
                return;
            }
            let Some((_, end)) = self.mark_at(at, marks).await else { return };
            self.take_many(end);
        }
    }

    /// Puts back the last taken characters.
    pub(crate) fn untake(&self, count: usize) {
        let mut state = self.state();
        for _ in 0..count {
            if let Some(c) = state.held.pop() {
                state.input.push_front(c);
            }
        }
    }

    /// Removes and returns the held text, for another part to emit.
    pub(crate) fn pick_up(&self) -> String {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held);
        state.away += held.chars().count();
        held
    }

    /// Removes and returns the inspected character.
    pub(crate) fn pick(&self) -> Option<char> {
        let mut state = self.state();
        let picked = state.input.pop_front();
        state.away += usize::from(picked.is_some());
        picked
    }

    /// Puts back removed text.
    pub(crate) fn unread(&self, text: &str) {
        let mut state = self.state();
        for c in text.chars().rev() {
            state.input.push_front(c);
            state.away = state.away.saturating_sub(1);
        }
    }

    /// Input that was pushed and not taken.
    pub(crate) fn remaining(&self) -> String {
        self.state().input.iter().collect()
    }

    /// Whether a call has ended, and none is open.
    pub(crate) fn has_whole_call(&self) -> bool {
        let state = self.state();
        state.calls > 0 && state.open.is_none() && state.broken == 0
    }

    pub(crate) async fn space(&self) -> Read<()> {
        while self.peek().await?.is_whitespace() {
            self.take();
        }
        Ok(())
    }

    /// Takes one character.
    pub(crate) async fn expect(&self, wanted: char) -> Read<()> {
        if self.peek().await? != wanted {
            return Err(Stop::Malformed);
        }
        self.take();
        Ok(())
    }

    /// Takes one of the marks if it comes next, else nothing. No mark may be the beginning of another.
    pub(crate) async fn one_of(&self, marks: &[&'static str]) -> Read<Option<&'static str>> {
        let mut taken = String::new();
        loop {
            if let Some(mark) = marks.iter().find(|mark| **mark == taken) {
                return Ok(Some(mark));
            }
            let next = self.look().await;
            let more = next.is_some_and(|c| {
                taken.push(c);
                let fits = marks.iter().any(|mark| mark.starts_with(&taken));
                if !fits {
                    taken.pop();
                }
                fits
            });
            if more {
                self.take();
            } else if next.is_none() && !taken.is_empty() {
                return Err(Stop::Ended);
            } else {
                let mut state = self.state();
                let kept = state.held.len() - taken.len();
                state.held.truncate(kept);
                for c in taken.chars().rev() {
                    state.input.push_front(c);
                }
                return Ok(None);
            }
        }
    }

    /// Emits the text before the next mark, and takes the mark. Those of `fresh` are marks only if nothing but white space
    /// came since the last one.
    pub(crate) async fn scan(
        &self,
        marks: &[&'static str],
        fresh: &[&'static str],
        mut emit: impl FnMut(&mut StreamState, &str),
    ) -> Read<&'static str> {
        loop {
            let next = self.look().await;
            let mut state = self.state();
            if next.is_none() {
                let held = std::mem::take(&mut state.held);
                emit(&mut state, &held);
                return Err(Stop::Ended);
            }
            state.next();
            while !state.held.is_empty() {
                state.count();
                let fresh = if state.is_fresh() { fresh } else { &[] };
                let mut live = marks.iter().chain(fresh).filter(|mark| mark.starts_with(&state.held));
                let nearest = live.clone().find(|mark| **mark == state.held);
                if let Some(mark) = nearest {
                    return Ok(mark);
                }
                if live.next().is_some() {
                    break;
                }
                let first = state.held.remove(0);
                emit(&mut state, first.encode_utf8(&mut [0; 4]));
            }
        }
    }

    // Results of parsing.

    /// The held characters are a mark: drops them.
    pub(crate) fn drop_mark(&self) {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held);
        if state.patient && state.open.is_some() {
            state.raw.push_str(&held);
        }
    }

    /// Emits the held characters as text.
    pub(crate) fn emit_held(&self) {
        self.state().emit_held();
    }

    /// The held mark begins or ends a thought.
    pub(crate) fn set_thinking(&self, thinking: bool) {
        let mut state = self.state();
        state.held.clear();
        state.layout.clear();
        state.thinking = thinking;
        state.behind = Behind::Mark;
    }

    /// Begins a call; the held characters are its mark.
    pub(crate) fn begin(&self, name: &str, id: Option<String>) -> usize {
        let mut state = self.state();
        let text = state.filter.interrupt();
        state.emit_visible(&text);
        let (layout, held) = (std::mem::take(&mut state.layout), std::mem::take(&mut state.held));
        if state.patient {
            state.raw = layout + &held;
        }
        let index = state.calls;
        state.calls += 1;
        state.open = Some(index);
        state.thinking = false;
        state.emit(AnswerPart::CallBegins { index, name: name.to_owned(), id });
        index
    }

    /// Takes the inspected character as this piece of arguments.
    pub(crate) fn emit_arguments(&self, sink: &mut Sink<'_>, json: &str) {
        match sink {
            Sink::Kept(kept) => {
                kept.push_str(json);
                self.take();
            }
            Sink::Call(index) => {
                let mut state = self.state();
                let taken = state.input.pop_front();
                let mut buffer = [0; 4];
                state.emit_arguments(*index, taken.map_or("", |c| c.encode_utf8(&mut buffer)), json);
            }
        }
    }

    /// The end of arguments without a closing text. `unread`: what was taken as theirs last, and is none of them.
    pub(crate) fn close_arguments(&self, sink: &mut Sink<'_>, json: &str, unread: &str) {
        match sink {
            Sink::Kept(kept) => {
                kept.push_str(json);
                self.untake(unread.chars().count());
            }
            Sink::Call(index) => {
                let mut state = self.state();
                state.emit_arguments(*index, "", json);
                let left = state.raw.len().saturating_sub(unread.len());
                state.raw.truncate(left);
                unread.chars().rev().for_each(|c| state.input.push_front(c));
            }
        }
    }

    /// Emits removed text as a thought.
    pub(crate) fn emit_text(&self, text: &str) {
        let mut state = self.state();
        state.away = state.away.saturating_sub(text.chars().count());
        state.emit_text(text);
    }

    /// Ends the thought without a mark.
    pub(crate) fn stop_thinking(&self) {
        let mut state = self.state();
        state.thinking = false;
        state.behind = Behind::Mark;
    }

    /// A piece of arguments in another notation; drops the held text.
    pub(crate) fn emit_json(&self, index: usize, json: &str) {
        self.drop_mark();
        self.state().emit_arguments(index, "", json);
    }

    /// Ends the call; the held characters are its mark.
    pub(crate) fn finish_call(&self, index: usize) {
        let mut state = self.state();
        state.held.clear();
        state.raw.clear();
        state.open = None;
        let tentative = std::mem::take(&mut state.tentative);
        for part in tentative {
            push(&mut state.parts, part);
        }
        state.emit(AnswerPart::CallEnds { index });
        state.behind = Behind::Call;
    }

    /// The text since the last mark does not fit, or the answer ended in it.
    pub(crate) fn abandon(&self, stop: Stop) {
        self.state().abandon(stop == Stop::Ended);
    }

    /// Ends the answer when all is parsed. White space after the last call is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let text = state.filter.end();
        state.emit_visible(&text);
        if state.behind == Behind::Mark {
            let layout = std::mem::take(&mut state.layout);
            if !layout.is_empty() {
                state.behind = Behind::Text;
                state.emit_visible(&layout);
            }
        }
    }
}
