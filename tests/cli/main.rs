//! The binary as a stranger meets it: first lines, wrong flags, broken files, pipes, terminals, signals.

mod batch;
mod bench;
mod bench_serve;
mod chat;
mod colours;
mod deploy;
mod doctor;
mod errors;
mod handoff;
mod lab;
mod limits;
mod logs;
mod narrower;
mod numbers;
mod plan;
mod quality;
mod quantize;
mod replay;
mod run;
mod serve;
mod sim;
mod templates;
mod terminal;
mod top;
mod verify;
