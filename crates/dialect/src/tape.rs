//! The character stream of one answer: unread input, held characters, and emitted parts.
//!
//! ```text
//!   input ──take──► held ──say_held───► Text or Thought      every character of an answer is in exactly one place
//!     │              ├──begin, settle──► a mark: dropped     (or, if only complete calls count, in `raw` until the call
//!     └──argue───────┴─────────────────► Arguments           ends)
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
use crate::unseen::Unseen;

/// Why parsing stopped.
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
pub(crate) struct Reel {
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
    /// Filter for all text after it.
    unseen: Unseen,
    /// For tests: number of character inspections, including repeated ones.
    #[cfg(test)]
    steps: usize,
}

impl Reel {
    /// Number of classified characters: those before the held ones.
    fn heard(&self) -> usize {
        self.pushed.saturating_sub(self.input.len() + self.held.chars().count() + self.away)
    }

    /// Whether a thought was closed from outside before the held characters.
    fn is_cut(&self) -> bool {
        self.cut.is_some_and(|cut| self.heard() >= cut)
    }

    fn note_thought(&mut self, text: &str) {
        let end = self.heard();
        let start = end.saturating_sub(text.chars().count());
        match self.thought.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.thought.push(start..end),
        }
    }

    fn give(&mut self, part: AnswerPart) {
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
    pub(crate) fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.thinking {
            self.note_thought(text);
            return self.give(AnswerPart::Thought(text.to_owned()));
        }
        if self.is_cut() {
            let text = self.unseen.hear(text);
            return self.tell(&text);
        }
        self.tell(text);
    }

    /// Emits visible text.
    fn tell(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.behind != Behind::Text {
            if text.chars().all(char::is_whitespace) {
                return self.layout.push_str(text);
            }
            self.behind = Behind::Text;
            let layout = std::mem::take(&mut self.layout);
            self.tell(&layout);
        }
        self.give(AnswerPart::Text(text.to_owned()));
    }

    /// Emits a piece of arguments for the text `read`.
    pub(crate) fn argue(&mut self, index: usize, read: &str, json: &str) {
        if self.patient {
            self.raw.push_str(read);
        }
        if !json.is_empty() {
            self.give(AnswerPart::Arguments { index, json: json.to_owned() });
        }
    }

    fn say_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.say(&held);
    }

    fn next(&mut self) {
        let c = self.input.pop_front().expect("it was looked at");
        self.held.push(c);
    }

    fn is_fresh(&self) -> bool {
        self.behind != Behind::Text && !self.unseen.is_holding()
    }

    /// The open call is not a call. Text of it that was not emitted becomes text.
    fn give_up(&mut self, is_over: bool) {
        if self.open.take().is_some() {
            self.behind = Behind::Text;
            self.broken += 1;
            if self.patient {
                self.calls -= 1;
                self.tentative.clear();
                let raw = std::mem::take(&mut self.raw);
                self.say(&raw);
            } else if is_over {
                self.held.clear();
            }
        }
        self.say_held();
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
pub(crate) struct Tape(Arc<Mutex<Reel>>);

impl Tape {
    /// `unseen`: marks to filter after a thought that was closed from outside.
    pub(crate) fn new(thinking: bool, patient: bool, unseen: Vec<&'static str>) -> Tape {
        Tape(Arc::new(Mutex::new(Reel {
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
            unseen: Unseen::new(unseen),
            #[cfg(test)]
            steps: 0,
        })))
    }

    fn reel(&self) -> MutexGuard<'_, Reel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Calls of the parser.

    pub(crate) fn push(&self, text: &str) {
        let mut reel = self.reel();
        let before = reel.input.len();
        reel.input.extend(text.chars());
        reel.pushed += reel.input.len() - before;
    }

    pub(crate) fn cut(&self, at: usize) {
        self.reel().cut = Some(at);
    }

    /// See [`Reel::is_cut`].
    pub(crate) fn is_cut(&self) -> bool {
        self.reel().is_cut()
    }

    pub(crate) fn heard(&self) -> usize {
        self.reel().heard()
    }

    pub(crate) fn thought(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.reel().thought)
    }

    pub(crate) fn end(&self) {
        self.reel().ended = true;
    }

    pub(crate) fn give(&self, parts: &mut Vec<AnswerPart>) {
        for part in self.reel().parts.drain(..) {
            push(parts, part);
        }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        self.reel().thinking
    }

    /// Number of calls that began, and whether all of them ended.
    pub(crate) fn calls(&self) -> (usize, bool) {
        let reel = self.reel();
        (reel.calls, reel.open.is_none() && reel.broken == 0)
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.reel().steps
    }

    // Calls of a syntax.

    /// The next character, `None` at the end of the answer.
    async fn look(&self) -> Option<char> {
        poll_fn(|_| {
            let mut reel = self.reel();
            reel.count();
            match reel.input.front() {
                Some(&c) => Poll::Ready(Some(c)),
                None if reel.ended => Poll::Ready(None),
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
            let mut reel = self.reel();
            reel.count();
            match reel.input.get(by) {
                Some(&c) => Poll::Ready(Some(c)),
                None if reel.ended => Poll::Ready(None),
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
        self.reel().next();
    }

    /// Takes `count` inspected characters.
    pub(crate) fn take_many(&self, count: usize) {
        let mut reel = self.reel();
        (0..count).for_each(|_| reel.next());
    }

    /// Takes repetitions of the marks, with the white space before each; none if a mark does not come, or if one of `others`
    /// with the same beginning does.
    pub(crate) async fn again(&self, marks: &[&'static str], others: &[&'static str]) {
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
        let mut reel = self.reel();
        for _ in 0..count {
            if let Some(c) = reel.held.pop() {
                reel.input.push_front(c);
            }
        }
    }

    /// Removes and returns the held text, for another part to emit.
    pub(crate) fn pick_up(&self) -> String {
        let mut reel = self.reel();
        let held = std::mem::take(&mut reel.held);
        reel.away += held.chars().count();
        held
    }

    /// Removes and returns the inspected character.
    pub(crate) fn pick(&self) -> Option<char> {
        let mut reel = self.reel();
        let picked = reel.input.pop_front();
        reel.away += usize::from(picked.is_some());
        picked
    }

    /// Puts back removed text.
    pub(crate) fn unread(&self, text: &str) {
        let mut reel = self.reel();
        for c in text.chars().rev() {
            reel.input.push_front(c);
            reel.away = reel.away.saturating_sub(1);
        }
    }

    /// Input that was pushed and not taken.
    pub(crate) fn unheard(&self) -> String {
        self.reel().input.iter().collect()
    }

    /// Whether a call has ended, and none is open.
    pub(crate) fn has_whole_call(&self) -> bool {
        let reel = self.reel();
        reel.calls > 0 && reel.open.is_none() && reel.broken == 0
    }

    /// Takes white space.
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
                let mut reel = self.reel();
                let kept = reel.held.len() - taken.len();
                reel.held.truncate(kept);
                for c in taken.chars().rev() {
                    reel.input.push_front(c);
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
        mut say: impl FnMut(&mut Reel, &str),
    ) -> Read<&'static str> {
        loop {
            let next = self.look().await;
            let mut reel = self.reel();
            if next.is_none() {
                let held = std::mem::take(&mut reel.held);
                say(&mut reel, &held);
                return Err(Stop::Ended);
            }
            reel.next();
            while !reel.held.is_empty() {
                reel.count();
                let fresh = if reel.is_fresh() { fresh } else { &[] };
                let mut live = marks.iter().chain(fresh).filter(|mark| mark.starts_with(&reel.held));
                let nearest = live.clone().find(|mark| **mark == reel.held);
                if let Some(mark) = nearest {
                    return Ok(mark);
                }
                if live.next().is_some() {
                    break;
                }
                let first = reel.held.remove(0);
                say(&mut reel, first.encode_utf8(&mut [0; 4]));
            }
        }
    }

    // Results of parsing.

    /// The held characters are a mark: drops them.
    pub(crate) fn settle(&self) {
        let mut reel = self.reel();
        let held = std::mem::take(&mut reel.held);
        if reel.patient && reel.open.is_some() {
            reel.raw.push_str(&held);
        }
    }

    /// Emits the held characters as text.
    pub(crate) fn say_held(&self) {
        self.reel().say_held();
    }

    /// The held mark begins or ends a thought.
    pub(crate) fn think(&self, thinking: bool) {
        let mut reel = self.reel();
        reel.held.clear();
        reel.layout.clear();
        reel.thinking = thinking;
        reel.behind = Behind::Mark;
    }

    /// Begins a call; the held characters are its mark.
    pub(crate) fn begin(&self, name: &str, id: Option<String>) -> usize {
        let mut reel = self.reel();
        let text = reel.unseen.interrupt();
        reel.tell(&text);
        let (layout, held) = (std::mem::take(&mut reel.layout), std::mem::take(&mut reel.held));
        if reel.patient {
            reel.raw = layout + &held;
        }
        let index = reel.calls;
        reel.calls += 1;
        reel.open = Some(index);
        reel.thinking = false;
        reel.give(AnswerPart::CallBegins { index, name: name.to_owned(), id });
        index
    }

    /// Takes the inspected character as this piece of arguments.
    pub(crate) fn argue(&self, sink: &mut Sink<'_>, json: &str) {
        match sink {
            Sink::Kept(kept) => {
                kept.push_str(json);
                self.take();
            }
            Sink::Call(index) => {
                let mut reel = self.reel();
                let taken = reel.input.pop_front();
                let mut buffer = [0; 4];
                reel.argue(*index, taken.map_or("", |c| c.encode_utf8(&mut buffer)), json);
            }
        }
    }

    /// The end of arguments without a closing text.
    pub(crate) fn close_arguments(&self, sink: &mut Sink<'_>, json: &str) {
        match sink {
            Sink::Kept(kept) => kept.push_str(json),
            Sink::Call(index) => self.reel().argue(*index, "", json),
        }
    }

    /// Emits removed text as a thought.
    pub(crate) fn say(&self, text: &str) {
        let mut reel = self.reel();
        reel.away = reel.away.saturating_sub(text.chars().count());
        reel.say(text);
    }

    /// Ends the thought without a mark.
    pub(crate) fn stop_thinking(&self) {
        let mut reel = self.reel();
        reel.thinking = false;
        reel.behind = Behind::Mark;
    }

    /// A piece of arguments in another notation; drops the held text.
    pub(crate) fn put(&self, index: usize, json: &str) {
        self.settle();
        self.reel().argue(index, "", json);
    }

    /// Ends the call; the held characters are its mark.
    pub(crate) fn finish_call(&self, index: usize) {
        let mut reel = self.reel();
        reel.held.clear();
        reel.raw.clear();
        reel.open = None;
        let tentative = std::mem::take(&mut reel.tentative);
        for part in tentative {
            push(&mut reel.parts, part);
        }
        reel.give(AnswerPart::CallEnds { index });
        reel.behind = Behind::Call;
    }

    /// The text since the last mark does not fit, or the answer ended in it.
    pub(crate) fn give_up(&self, stop: Stop) {
        self.reel().give_up(stop == Stop::Ended);
    }

    /// Ends the answer when all is parsed. White space after the last call is dropped.
    pub(crate) fn close(&self) {
        let mut reel = self.reel();
        let text = reel.unseen.end();
        reel.tell(&text);
        if reel.behind == Behind::Mark {
            let layout = std::mem::take(&mut reel.layout);
            if !layout.is_empty() {
                reel.behind = Behind::Text;
                reel.tell(&layout);
            }
        }
    }
}
