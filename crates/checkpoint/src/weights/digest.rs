//! One digest for all tensors of a checkpoint, as its files hold them: it names the weights, whatever is made of them.
//!
//! ```text
//! tensor   name, type, shape, bytes  ──BLAKE3──> digest ─┐
//! tensor   ...                                  digest ─┼─ by rising name ──BLAKE3──> digest of the weights
//! ```
//! The digests of a packed image are of no use for that: they are of bytes as one version of this program lays them
//! out, there are none for small models, and they find accidents alone. This one does not depend on which files the
//! tensors are in, nor in which order; a checkpoint in another container has another one.

use std::collections::BTreeMap;

use blake3::Hasher;

use crate::checkpoint::Checkpoint;
use crate::container::TensorInfo;
use crate::files::{LoadError, ModelFile};

/// Bytes that are read at a time.
const PART: usize = 1 << 20;

/// Reads every tensor once: as fast as the disk, or some GB/s from the page cache.
///
/// `not_after`: the second, since 1970, after which no file may have been written to: what was loaded before is
/// something else then.
pub(super) fn digest(checkpoint: &Checkpoint, not_after: Option<i64>) -> Result<[u8; 32], LoadError> {
    let mut digests: BTreeMap<String, [u8; 32]> = BTreeMap::new();
    let mut buffer = vec![0; PART];
    let mut add = |file: ModelFile, tensors: Vec<TensorInfo>| {
        for tensor in &tensors {
            digests.insert(tensor.name.clone(), of_tensor(&file, tensor, &mut buffer)?);
        }
        // Behind the reading: what was written meanwhile counts too.
        match (not_after, file.times()) {
            (Some(not_after), Some([_, (changed, _)])) if changed > not_after => {
                Err(LoadError::field(file.name(), "time of change", "it was written to after the weights were loaded"))
            }
            _ => Ok(()),
        }
    };
    checkpoint.container().tensors(checkpoint.files(), &mut add)?;
    let mut all = Hasher::new_derive_key("twostroke weights 1: checkpoint");
    digests.values().for_each(|digest| _ = all.update(digest));
    Ok(*all.finalize().as_bytes())
}

fn of_tensor(file: &ModelFile, tensor: &TensorInfo, buffer: &mut [u8]) -> Result<[u8; 32], LoadError> {
    let mut digest = Hasher::new_derive_key("twostroke weights 1: tensor");
    let encoding = tensor.encoding.name();
    for text in [tensor.name.as_str(), encoding] {
        digest.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    digest.update(&(tensor.shape.len() as u64).to_le_bytes());
    tensor.shape.iter().for_each(|&dim| _ = digest.update(&(dim as u64).to_le_bytes()));
    let mut at = 0;
    while at < tensor.len {
        let part = &mut buffer[..(tensor.len - at).min(PART as u64) as usize];
        file.read_at(tensor.offset + at, part)?;
        digest.update(part);
        at += part.len() as u64;
    }
    Ok(*digest.finalize().as_bytes())
}
