//! One answer as it runs past: what was read and not yet given out, and what became of the rest.
//!
//! ```text
//!   input ──take──► held ──text──► Text or Thought          every character of an answer is in exactly one place
//!     │              ├──begin, settle──► a mark: gone        (or, if only whole calls count, in `raw` until the call
//!     └──argue───────┴─────────────────► Arguments            ends)
//! ```
//!
//! A family's syntax is read by an `async fn` that takes character after character and waits where there is none yet:
//! a coroutine. So it reads like its grammar, and how an answer is cut into pieces cannot matter: nothing but the next
//! character can be asked for. It is polled when something was pushed; there is no runtime and no waker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::AnswerPart;
use crate::unseen::Unseen;

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The next character does not fit. It is still there to be read as text.
    Malformed,
    /// The answer is over.
    Ended,
}

pub(crate) type Read<T> = Result<T, Stop>;

/// What a reader of a whole answer returns: it ends by [`Stop`] alone.
pub(crate) enum Never {}

/// What white space would stand behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The beginning of the answer, or a thought.
    Mark,
    Call,
    Text,
}

/// See the module's picture.
pub(crate) struct Reel {
    input: VecDeque<char>,
    ended: bool,
    held: String,
    parts: Vec<AnswerPart>,
    thinking: bool,
    behind: Behind,
    /// White space behind a mark: text, if text follows.
    layout: String,
    /// Calls that began.
    calls: usize,
    /// The call that has begun and not ended.
    open: Option<usize>,
    /// Calls that began and never will end.
    broken: usize,
    /// Only calls that end are given out.
    patient: bool,
    /// If patient: the text of the open call, and its parts.
    raw: String,
    tentative: Vec<AnswerPart>,
    /// Characters that were pushed, and those of them that were picked up and not put back.
    pushed: usize,
    away: usize,
    /// Which of them were read as thoughts, since this was asked last.
    thought: Vec<Range<usize>>,
    /// Behind so many characters a thought was closed from outside.
    cut: Option<usize>,
    /// What all text behind it passes.
    unseen: Unseen,
    /// What tests count: looks at a character, however often at the same.
    #[cfg(test)]
    steps: usize,
}

impl Reel {
    /// How many characters are known to be what they are: those before what is held.
    fn heard(&self) -> usize {
        self.pushed.saturating_sub(self.input.len() + self.held.chars().count() + self.away)
    }

    /// Whether a thought was closed from outside before what is held.
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

    /// A character is looked at, which tests count.
    fn count(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    /// What is no mark: text, or a thought inside one.
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

    /// Text that is shown.
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

    /// What was read is given out as a piece of arguments.
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

    /// The open call is none after all. Its text, as far as nobody has it, is text.
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

/// Adds a part, to the last one if both are of one kind.
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

/// Where the pieces of arguments go.
pub(crate) enum Sink<'a> {
    /// To who listens.
    Call(usize),
    /// Nowhere yet: the name is not known. They are held.
    Kept(&'a mut String),
}

/// The handle that listener and coroutine share.
#[derive(Clone)]
pub(crate) struct Tape(Arc<Mutex<Reel>>);

impl Tape {
    /// `unseen`: what is no text behind a thought that was closed from outside.
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

    // What the listener does.

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

    /// Calls that began, and whether all of them ended.
    pub(crate) fn calls(&self) -> (usize, bool) {
        let reel = self.reel();
        (reel.calls, reel.open.is_none() && reel.broken == 0)
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> usize {
        self.reel().steps
    }

    // What a syntax reads.

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

    /// The next character, which stays.
    pub(crate) async fn peek(&self) -> Read<char> {
        self.look().await.ok_or(Stop::Ended)
    }

    /// The character behind so many others, all of which stay. `None` behind the end of the answer.
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

    /// Which of the marks stands behind so many characters, and how many characters its end is away. All stays.
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

    /// The first character at or behind `by` that is no white space. All stays.
    pub(crate) async fn behind_space(&self, mut by: usize) -> usize {
        while self.ahead(by).await.is_some_and(char::is_whitespace) {
            by += 1;
        }
        by
    }

    /// Takes the character that was looked at.
    pub(crate) fn take(&self) {
        self.reel().next();
    }

    /// Takes so many characters that were looked at.
    pub(crate) fn take_many(&self, count: usize) {
        let mut reel = self.reel();
        (0..count).for_each(|_| reel.next());
    }

    /// Takes the marks as often as they come, with the white space before each, and neither if none does, or `others`
    /// that begin like them do.
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

    /// Gives back the last characters that were taken: they come next.
    pub(crate) fn untake(&self, count: usize) {
        let mut reel = self.reel();
        for _ in 0..count {
            if let Some(c) = reel.held.pop() {
                reel.input.push_front(c);
            }
        }
    }

    /// Takes away what is held: another part says it.
    pub(crate) fn pick_up(&self) -> String {
        let mut reel = self.reel();
        let held = std::mem::take(&mut reel.held);
        reel.away += held.chars().count();
        held
    }

    /// Takes away the character that was looked at.
    pub(crate) fn pick(&self) -> Option<char> {
        let mut reel = self.reel();
        let picked = reel.input.pop_front();
        reel.away += usize::from(picked.is_some());
        picked
    }

    /// Puts back what was picked up: it comes next.
    pub(crate) fn unread(&self, text: &str) {
        let mut reel = self.reel();
        for c in text.chars().rev() {
            reel.input.push_front(c);
            reel.away = reel.away.saturating_sub(1);
        }
    }

    /// What was pushed and not read.
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

    /// Takes one of the marks if it comes now, else nothing. None may be the beginning of another.
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

    /// Gives out what comes before the next mark as `say` likes, and takes the mark. Those of `fresh` are marks only
    /// where nothing but white space stands since the last one.
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

    // What it makes of that.

    /// What is held is a mark.
    pub(crate) fn settle(&self) {
        let mut reel = self.reel();
        let held = std::mem::take(&mut reel.held);
        if reel.patient && reel.open.is_some() {
            reel.raw.push_str(&held);
        }
    }

    /// What is held is what it looks like.
    pub(crate) fn say_held(&self) {
        self.reel().say_held();
    }

    /// A thought begins or ends with the mark that is held.
    pub(crate) fn think(&self, thinking: bool) {
        let mut reel = self.reel();
        reel.held.clear();
        reel.layout.clear();
        reel.thinking = thinking;
        reel.behind = Behind::Mark;
    }

    /// A call begins; what is held is its mark.
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

    /// Takes the character that was looked at: it makes this piece of arguments.
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

    /// The end of arguments that nothing stands for.
    pub(crate) fn close_arguments(&self, sink: &mut Sink<'_>, json: &str) {
        match sink {
            Sink::Kept(kept) => kept.push_str(json),
            Sink::Call(index) => self.reel().argue(*index, "", json),
        }
    }

    /// What was picked up is a thought's.
    pub(crate) fn say(&self, text: &str) {
        let mut reel = self.reel();
        reel.away = reel.away.saturating_sub(text.chars().count());
        reel.say(text);
    }

    /// The thought is over, and no mark says so.
    pub(crate) fn stop_thinking(&self) {
        let mut reel = self.reel();
        reel.thinking = false;
        reel.behind = Behind::Mark;
    }

    /// A piece of arguments that was written otherwise; its text is held, a mark.
    pub(crate) fn put(&self, index: usize, json: &str) {
        self.settle();
        self.reel().argue(index, "", json);
    }

    /// The call ends; what is held is its mark.
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

    /// What was read since the last mark does not fit, or the answer ended in it.
    pub(crate) fn give_up(&self, stop: Stop) {
        self.reel().give_up(stop == Stop::Ended);
    }

    /// The answer is over and all is read. White space behind the last call says nothing.
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
