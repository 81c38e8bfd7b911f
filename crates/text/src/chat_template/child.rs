//! Templates in processes of their own, which nothing that a template does outlives.
//!
//! ```text
//!  Pool::render ──┬─► Worker ──thread──pipe──► child: limits on itself, then jinja.rs      at most MAX_CHILDREN,
//!                 └─► Worker ──thread──pipe──► child                                       each started when needed
//! ```
//!
//! A template can make its interpreter use all memory in one instruction, go deeper than any stack, or search a text
//! for hours: nothing that counts inside the interpreter sees that in time. A process has a limit of memory that the
//! kernel keeps, and can be ended from outside. So a child that is slow, large or dead is the error of the one request
//! that it worked for, and the next request gets another child.
//!
//! The child is this program again, under a verb that nobody else uses; the command line sets its limits
//! (`crates/cli/src/commands/render_templates.rs`) before it reads a byte. It inherits its two pipes and nothing else, neither
//! variables nor directory nor terminal, and ends with the thread that started it and at the end of its input.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::conversation::{Conversation, MAX_RENDER_WAIT, RENDER_STACK_BYTES, Sources, TemplateError};
use super::jinja::{Compiled, NotATemplate, PROBLEMS};
use super::wire::{self, HELLO, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request};

/// Longest that a child may take to start: a busy machine that reads the program from a slow disk.
const MAX_START_TIME: Duration = Duration::from_secs(20);
/// Most children at once. Two would keep one slow rendering from stopping everybody; each costs some 10 MiB while it
/// waits, and all together at most this many times `MAX_RENDER_MEMORY`.
const MAX_CHILDREN: usize = 4;
/// A child that has read or written this much in one rendering is replaced, so that its memory goes back.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// Answers requests from `input` on `output` until `input` ends: the whole life of a child process. `before_each` is
/// called before each of them.
///
/// Limits must be set by then. A panic is an answer; what aborts ends the process.
pub fn serve(
    mut input: impl Read + Send,
    mut output: impl Write + Send,
    mut before_each: impl FnMut() + Send,
) -> io::Result<()> {
    let work = || {
        wire::write_frame(&mut output, HELLO)?;
        let mut compiled = None;
        while let Some(frame) = wire::read_frame(&mut input, MAX_REQUEST_BYTES)? {
            before_each();
            let answer = answer(&frame, &mut compiled).ok_or_else(|| io::Error::other("not a request"))?;
            drop(frame);
            wire::write_frame(&mut output, &answer)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("template".to_string()).stack_size(RENDER_STACK_BYTES as usize);
        builder.spawn_scoped(scope, work)?.join().unwrap_or_else(|_| Err(io::Error::other("a bug")))
    })
}

fn answer(frame: &[u8], compiled: &mut Option<(Sources, Compiled)>) -> Option<Vec<u8>> {
    match wire::request(frame)? {
        Request::Compile(sources) => match Compiled::new(&sources) {
            Ok(done) => {
                *compiled = Some((sources, done));
                Some(wire::compiled_answer(Ok(())))
            }
            Err(error) => Some(wire::compiled_answer(Err(&error))),
        },
        Request::Render { messages, options, marks } => {
            let (sources, compiled) = compiled.as_ref()?;
            let conversation = Conversation { messages: &messages, options: &options, marks: &marks };
            let render = || compiled.render(sources, conversation);
            let rendered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(render));
            let bug = TemplateError::Failed { line: 0, problem: PROBLEMS[PROBLEMS.len() - 1] };
            Some(wire::rendered_answer(rendered.unwrap_or(Err(bug))))
        }
    }
}

/// Why templates could not be compiled in a child.
pub(super) enum Unready {
    /// A template is not one.
    Wrong(NotATemplate),
    /// The child.
    Child(TemplateError),
}

impl Unready {
    /// Of templates that a child has compiled before.
    fn into_error(self) -> TemplateError {
        match self {
            Unready::Child(error) => error,
            Unready::Wrong(_) => TemplateError::ProcessEnded,
        }
    }
}

/// The children that render one model's templates.
#[derive(Debug)]
pub(super) struct Pool {
    /// Program and arguments.
    command: Vec<OsString>,
    /// What a child is told first.
    compile: Vec<u8>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Worker>,
    /// Those at work and those idle.
    children: usize,
}

impl Pool {
    /// Compiles the templates in a first child, which is kept for the first rendering.
    pub(super) fn new(command: &[OsString], sources: &Sources) -> Result<Pool, Unready> {
        let pool = Pool {
            command: command.to_vec(),
            compile: wire::compile_request(sources),
            state: Mutex::default(),
            freed: Condvar::new(),
        };
        let worker = pool.start()?;
        let mut state = pool.state();
        state.children = 1;
        state.idle.push(worker);
        drop(state);
        Ok(pool)
    }

    /// The prompt as text. Waits for a child while all are at work.
    pub(super) fn render(&self, conversation: Conversation<'_>) -> Result<String, TemplateError> {
        let request = wire::render_request(conversation);
        let sent = request.len();
        if sent > MAX_REQUEST_BYTES {
            return Err(TemplateError::TooLong);
        }
        let mut seat = self.seat()?;
        let frame = match seat.worker().ask(request) {
            // Somebody may have killed it while it had nothing to do, and it was still ending when it was asked.
            Err(_) if !seat.is_new && seat.worker().was_killed() => {
                seat.replace(self.start().map_err(Unready::into_error)?);
                seat.worker().ask(wire::render_request(conversation))?
            }
            asked => asked?,
        };
        let rendered = wire::rendered(&frame).ok_or(TemplateError::ProcessEnded)?;
        if sent.max(frame.len()) <= MAX_KEPT_BYTES {
            seat.keep();
        }
        rendered
    }

    /// A child that waits, or a new one, or the one that is free next.
    fn seat(&self) -> Result<Seat<'_>, TemplateError> {
        let mut state = self.state();
        loop {
            match state.idle.pop() {
                // One that ended while it had nothing to do (somebody was short of memory) is nobody's error.
                Some(worker) if worker.has_ended() => state.children -= 1,
                Some(worker) => return Ok(Seat { pool: self, worker: Some(worker), is_new: false }),
                None if state.children < MAX_CHILDREN => {
                    state.children += 1;
                    drop(state);
                    // Counts as a child from here on, also when it does not start.
                    let mut seat = Seat { pool: self, worker: None, is_new: true };
                    seat.worker = Some(self.start().map_err(Unready::into_error)?);
                    return Ok(seat);
                }
                None => state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn start(&self) -> Result<Worker, Unready> {
        let mut worker = Worker::start(&self.command).map_err(Unready::Child)?;
        let answer = worker.ask(self.compile.clone()).map_err(Unready::Child)?;
        match wire::compiled(&answer) {
            Some(Ok(())) => Ok(worker),
            Some(Err(wrong)) => Err(Unready::Wrong(wrong)),
            None => Err(Unready::Child(TemplateError::ProcessEnded)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child at work, counted. Ends the child when dropped, unless it was [kept](Seat::keep).
struct Seat<'a> {
    pool: &'a Pool,
    worker: Option<Worker>,
    /// It has rendered nothing yet.
    is_new: bool,
}

impl Seat<'_> {
    fn replace(&mut self, worker: Worker) {
        self.worker = Some(worker);
        self.is_new = true;
    }

    fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("a seat has a child until it is left")
    }

    fn keep(mut self) {
        let worker = self.worker.take();
        self.pool.state().idle.extend(worker);
        self.pool.freed.notify_one();
        std::mem::forget(self);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        drop(self.worker.take());
        self.pool.state().children -= 1;
        self.pool.freed.notify_one();
    }
}

/// One child, and the thread that started it, writes to it and reads from it: whoever waits for an answer can stop
/// waiting.
#[derive(Debug)]
struct Worker {
    process: Arc<Mutex<Child>>,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Vec<u8>>,
    /// It took too long and was ended.
    given_up: bool,
}

impl Worker {
    fn start(command: &[OsString]) -> Result<Worker, TemplateError> {
        let command = command.to_vec();
        let (requests, to_send) = channel::<Vec<u8>>();
        let (received, answers) = channel();
        let (started, starting) = channel();
        // The kernel ends the child when the thread that started it ends: so this one does, and stays.
        let work = move || {
            let child = spawn(&command).and_then(|mut child| {
                let pipes = child.stdin.take().zip(child.stdout.take());
                let pipes = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
                Ok((Arc::new(Mutex::new(child)), pipes))
            });
            let Ok((child, (stdin, stdout))) = child else { return };
            if started.send(child).is_ok() {
                let _ = carry(stdin, stdout, &to_send, &received);
            }
        };
        let thread = thread::Builder::new().name("template".to_string()).spawn(work);
        thread.map_err(|_| TemplateError::NoProcess)?;
        let process = starting.recv().map_err(|_| TemplateError::NoProcess)?;
        let worker = Worker { process, requests, answers, given_up: false };
        match worker.answers.recv_timeout(MAX_START_TIME) {
            Ok(hello) if hello == HELLO => Ok(worker),
            _ => Err(TemplateError::NoProcess),
        }
    }

    /// Sends a request and waits for the answer. After an error, the child has ended. How long it computes is bounded by
    /// its own limit of processor time, however busy the machine is; how long it is waited for, here.
    fn ask(&mut self, request: Vec<u8>) -> Result<Vec<u8>, TemplateError> {
        // Fails when the thread has gone, and then there is no answer either.
        let _ = self.requests.send(request);
        match self.answers.recv_timeout(MAX_RENDER_WAIT) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.given_up = true;
                self.end();
                Err(TemplateError::NoProcessor)
            }
            // It closed its output, or wrote what is not an answer.
            Err(RecvTimeoutError::Disconnected) => Err(why(self.end())),
        }
    }

    /// Whether it has ended by SIGKILL, which neither we nor its own limits sent.
    fn was_killed(&self) -> bool {
        #[cfg(unix)]
        if let Ok(Some(status)) = self.process().try_wait() {
            return !self.given_up && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        }
        false
    }

    fn has_ended(&self) -> bool {
        !matches!(self.process().try_wait(), Ok(None))
    }

    /// Ends the child if it has not ended by itself; says how if it has.
    fn end(&self) -> Option<ExitStatus> {
        let mut process = self.process();
        // Its output is closed: what is left of it takes no time, once it has a processor.
        let ended = (0..2500).find_map(|_| match process.try_wait() {
            Ok(None) if self.closed() => {
                thread::sleep(Duration::from_millis(2));
                None
            }
            Ok(status) => Some(status),
            Err(_) => Some(None),
        });
        let _ = process.kill();
        let _ = process.wait();
        ended.flatten()
    }

    /// Whether the thread that reads has seen the end.
    fn closed(&self) -> bool {
        matches!(self.answers.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected))
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut process = self.process();
        let _ = process.kill();
        // Also takes it out of the table of processes.
        let _ = process.wait();
    }
}

/// Why a child ended in the middle of a request.
fn why(status: Option<ExitStatus>) -> TemplateError {
    #[cfg(unix)]
    if let Some(signal) = status.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)) {
        return match signal {
            // SIGABRT is Rust's end when memory or the stack is used up, and SIGKILL, which nobody else sends at such a
            // moment, the kernel's when a machine has no memory left; or SIGBUS, or SIGSEGV.
            6 | 7 | 9 | 11 => TemplateError::OutOfMemory,
            // SIGXCPU.
            24 => TemplateError::TooSlow,
            _ => TemplateError::ProcessEnded,
        };
    }
    TemplateError::ProcessEnded
}

fn spawn(command: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or_else(|| io::Error::other("no program"))?;
    let mut child = Command::new(program);
    child.args(arguments).env_clear().current_dir("/");
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // Ctrl-C in the terminal is for the program, which may still have requests to finish.
        child.process_group(0);
        // That file has no name of its own. What has one may need it: an interpreter finds its library by it.
        if program == "/proc/self/exe" {
            child.arg0("twostroke");
        }
    }
    child.spawn()
}

/// Requests in, answers out, until one side ends.
fn carry(
    mut stdin: ChildStdin,
    mut stdout: ChildStdout,
    requests: &Receiver<Vec<u8>>,
    answers: &Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut receive = || match wire::read_frame(&mut stdout, MAX_ANSWER_BYTES)? {
        Some(answer) => answers.send(answer).map_err(io::Error::other),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    };
    receive()?;
    while let Ok(request) = requests.recv() {
        wire::write_frame(&mut stdin, &request)?;
        drop(request);
        receive()?;
    }
    Ok(())
}
