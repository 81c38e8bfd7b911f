//! One file per verb.

pub(crate) mod batch;
pub(crate) mod bench;
pub(crate) mod bench_serve;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod kept;
pub(crate) mod lab;
pub(crate) mod man_pages;
pub(crate) mod plan;
pub(crate) mod ps;
pub(crate) mod quality;
pub(crate) mod quantize;
pub(crate) mod reference;
pub(crate) mod render_templates;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod top;
pub(crate) mod verify;
pub(crate) mod whatif;
pub(crate) mod why;
