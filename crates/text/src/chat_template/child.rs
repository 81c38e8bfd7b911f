//! Child processes that render templates, and the pool of them.
//!
//! ```text
//!  Pool::render ──┬─► Worker ──thread──pipe──► child: limits on itself, then jinja.rs      at most MAX_CHILDREN,
//!                 └─► Worker ──thread──pipe──► child                                       each started when needed
//! ```
//!
//! A template can make its interpreter use all memory in one instruction, exhaust any stack, or search a text for
//! hours; no counter inside the interpreter sees that in time. A process has a memory limit that the kernel enforces,
//! and can be killed. So a child that is slow, large or dead is the error of the one request that it rendered, and the
//! next request gets another child.
//!
//! The child is this program under an internal verb; `crates/cli/src/commands/render_templates.rs` sets its limits
//! before it reads a byte. It inherits its two pipes and nothing else, neither variables nor directory nor terminal,
//! and ends with the thread that started it or at the end of its input.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::conversation::{Conversation, MAX_RENDER_WAIT, RENDER_STACK_BYTES, Sources, TemplateError};
use super::jinja::{Compiled, InvalidTemplate, PROBLEMS};
use super::wire::{self, HELLO, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request};

/// Maximum start time of a child: a busy machine that reads the program from a slow disk.
const MAX_START_TIME: Duration = Duration::from_secs(20);
/// Maximum number of children. Two would keep one slow rendering from blocking all others; each costs some 10 MiB while
/// idle, and at most `MAX_RENDER_MEMORY`.
const MAX_CHILDREN: usize = 4;
/// A child that has read or written more in one rendering is replaced, to free its memory.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The main loop of a child process: answers requests from `input` on `output` until `input` ends. `before_each` runs
/// before each request.
///
/// Limits must already be set. A panic becomes an error answer; an abort ends the process.
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

/// Failure to compile templates in a child.
pub(super) enum CompileError {
    /// A template is invalid.
    Template(InvalidTemplate),
    /// The child failed.
    Child(TemplateError),
}

impl CompileError {
    /// The error for templates that another child has compiled before.
    fn into_error(self) -> TemplateError {
        match self {
            CompileError::Child(error) => error,
            CompileError::Template(_) => TemplateError::ProcessEnded,
        }
    }
}

/// The children that render one model's templates.
#[derive(Debug)]
pub(super) struct Pool {
    /// Program and arguments.
    command: Vec<OsString>,
    /// The first request to each child.
    compile: Vec<u8>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Worker>,
    /// Busy and idle ones.
    children: usize,
}

impl Pool {
    /// Compiles the templates in a first child, which is kept for the first rendering.
    pub(super) fn new(command: &[OsString], sources: &Sources) -> Result<Pool, CompileError> {
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

    /// The prompt as text. Waits while all children are busy.
    pub(super) fn render(&self, conversation: Conversation<'_>) -> Result<String, TemplateError> {
        let request = wire::render_request(conversation);
        let sent = request.len();
        if sent > MAX_REQUEST_BYTES {
            return Err(TemplateError::TooLong);
        }
        let mut lease = self.lease()?;
        let frame = match lease.worker().ask(request) {
            // It may have been killed from outside while idle, and was still exiting when the request was sent.
            Err(_) if !lease.is_new && lease.worker().was_killed() => {
                lease.replace(self.start().map_err(CompileError::into_error)?);
                lease.worker().ask(wire::render_request(conversation))?
            }
            asked => asked?,
        };
        let rendered = wire::rendered(&frame).ok_or(TemplateError::ProcessEnded)?;
        if sent.max(frame.len()) <= MAX_KEPT_BYTES {
            lease.keep();
        }
        rendered
    }

    /// An idle child, or a new one, or the one that becomes idle next.
    fn lease(&self) -> Result<Lease<'_>, TemplateError> {
        let mut state = self.state();
        loop {
            match state.idle.pop() {
                // A child that ended while idle (killed for memory, say) is no error.
                Some(worker) if worker.has_ended() => state.children -= 1,
                Some(worker) => return Ok(Lease { pool: self, worker: Some(worker), is_new: false }),
                None if state.children < MAX_CHILDREN => {
                    state.children += 1;
                    drop(state);
                    // Dropping it on a failed start takes back the count.
                    let mut lease = Lease { pool: self, worker: None, is_new: true };
                    lease.worker = Some(self.start().map_err(CompileError::into_error)?);
                    return Ok(lease);
                }
                None => state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn start(&self) -> Result<Worker, CompileError> {
        let mut worker = Worker::start(&self.command).map_err(CompileError::Child)?;
        let answer = worker.ask(self.compile.clone()).map_err(CompileError::Child)?;
        match wire::compiled(&answer) {
            Some(Ok(())) => Ok(worker),
            Some(Err(invalid)) => Err(CompileError::Template(invalid)),
            None => Err(CompileError::Child(TemplateError::ProcessEnded)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A busy child. Dropping it ends the child, unless it was [kept](Lease::keep).
struct Lease<'a> {
    pool: &'a Pool,
    worker: Option<Worker>,
    /// The child has not rendered anything yet.
    is_new: bool,
}

impl Lease<'_> {
    fn replace(&mut self, worker: Worker) {
        self.worker = Some(worker);
        self.is_new = true;
    }

    fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("a lease has a child until it is dropped")
    }

    fn keep(mut self) {
        let worker = self.worker.take();
        self.pool.state().idle.extend(worker);
        self.pool.freed.notify_one();
        std::mem::forget(self);
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        drop(self.worker.take());
        self.pool.state().children -= 1;
        self.pool.freed.notify_one();
    }
}

/// One child, and the thread that started it and does its I/O, so that waiting for an answer can time out.
#[derive(Debug)]
struct Worker {
    process: Arc<Mutex<Child>>,
    requests: Sender<Vec<u8>>,
    answers: Receiver<Vec<u8>>,
    /// It did not answer in time and was killed.
    timed_out: bool,
}

impl Worker {
    fn start(command: &[OsString]) -> Result<Worker, TemplateError> {
        let command = command.to_vec();
        let (requests, to_send) = channel::<Vec<u8>>();
        let (received, answers) = channel();
        let (started, starting) = channel();
        // The kernel kills the child when the thread that started it ends, so this thread starts it and stays.
        let work = move || {
            let child = spawn(&command).and_then(|mut child| {
                let pipes = child.stdin.take().zip(child.stdout.take());
                let pipes = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
                Ok((Arc::new(Mutex::new(child)), pipes))
            });
            let Ok((child, (stdin, stdout))) = child else { return };
            if started.send(child).is_ok() {
                let _ = forward(stdin, stdout, &to_send, &received);
            }
        };
        let thread = thread::Builder::new().name("template".to_string()).spawn(work);
        thread.map_err(|_| TemplateError::NoProcess)?;
        let process = starting.recv().map_err(|_| TemplateError::NoProcess)?;
        let worker = Worker { process, requests, answers, timed_out: false };
        match worker.answers.recv_timeout(MAX_START_TIME) {
            Ok(hello) if hello == HELLO => Ok(worker),
            _ => Err(TemplateError::NoProcess),
        }
    }

    /// Sends a request and waits for the answer. After an error, the child has ended. The child's own limit bounds its
    /// CPU time, however busy the machine is; this bounds the wait.
    fn ask(&mut self, request: Vec<u8>) -> Result<Vec<u8>, TemplateError> {
        // Fails if the thread has ended; then there is no answer either.
        let _ = self.requests.send(request);
        match self.answers.recv_timeout(MAX_RENDER_WAIT) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.timed_out = true;
                self.end();
                Err(TemplateError::NoProcessor)
            }
            // It closed its output, or wrote an invalid answer.
            Err(RecvTimeoutError::Disconnected) => Err(error_of_exit(self.end())),
        }
    }

    /// Whether it was ended by a SIGKILL from outside: neither this process nor the child's limits sent it.
    fn was_killed(&self) -> bool {
        #[cfg(unix)]
        if let Ok(Some(status)) = self.process().try_wait() {
            return !self.timed_out && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        }
        false
    }

    fn has_ended(&self) -> bool {
        !matches!(self.process().try_wait(), Ok(None))
    }

    /// Kills the child unless it has ended by itself; returns its status if it has.
    fn end(&self) -> Option<ExitStatus> {
        let mut process = self.process();
        // Its output is closed, so it exits as soon as it gets CPU time.
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

    /// Whether the I/O thread has seen the end of the output.
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
        // Also reaps the process.
        let _ = process.wait();
    }
}

/// The error for a child that ended in the middle of a request.
fn error_of_exit(status: Option<ExitStatus>) -> TemplateError {
    #[cfg(unix)]
    if let Some(signal) = status.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)) {
        return match signal {
            // Rust aborts (SIGABRT) when memory or the stack is exhausted, and the kernel sends SIGKILL when the
            // machine is out of memory; SIGBUS and SIGSEGV mean the same here.
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
        // Ctrl-C in the terminal must reach only the parent, which may still have requests to finish.
        child.process_group(0);
        // Only this file needs a name. Another program keeps its own: an interpreter finds its library by it.
        if program == "/proc/self/exe" {
            child.arg0("twostroke");
        }
    }
    child.spawn()
}

/// Forwards requests and answers until one side ends.
fn forward(
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
