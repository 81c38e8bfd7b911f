//! Low-rank adapters (LoRA: Hu et al., 2021): small matrices beside those of a model, which some rows of a pass go
//! through and others do not.
//!
//! ```text
//! adapter_config.json  adapter_model.safetensors       a directory as peft writes it
//!          └──────── files.rs ────────┘                read and checked against the model: an `Adapter`, on the host
//!                       └─ packed.rs ──> A, B of each projection, bf16      in one of the slots of a `Runner`
//!
//! rows of a step   [ none | slot 0 | slot 1 | slot 0 ]     rows.rs: lists by slot
//! projection       y = W x                                 for all rows, as if none had an adapter
//!   all slots      h = A x ─> d = B h ─> added to y, for the rows of each: one operation of the backend
//! ```
//! The definition: `A`, and `B` times its scale, are rounded to bf16 once, when they are packed. `h` is the bf16 product
//! of `A` and the projection's input, `d` that of `B` and `h`, whose numbers are rounded to bf16 as activations always
//! are; `y + d` is rounded once, in f32. Projections whose results are in one row (q, k and v; gate and up) share one
//! product of each kind: `A` is theirs one under the other, and of `h` each of their outputs reads what is its own. So
//! a row's bits depend on its own adapter and history, and a row without one has the bits that it has in a model
//! without any.

mod files;
mod packed;
mod rows;

pub use files::Adapter;
pub use packed::{AdapterPacker, AdapterRoom, PackedAdapter, adapter_bytes};
pub(crate) use packed::{At, Module, Packed};
pub(crate) use rows::RowLists;
