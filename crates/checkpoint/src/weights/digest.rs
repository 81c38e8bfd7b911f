//! One digest of all tensors of a checkpoint as stored: it identifies the weights, independent of class and packing.
//!
//! ```text
//! tensor   name, type, shape, bytes  ──BLAKE3──> digest ─┐
//! tensor   ...                                  digest ─┼─ sorted by name ──BLAKE3──> digest of the weights
//! ```
//! The digests of a packed image cannot serve for this: they depend on one version's layout, small models have none,
//! and they detect only accidental changes. This digest depends neither on the files that hold the tensors nor on their
//! order; a checkpoint in another container has another digest.

use std::collections::BTreeMap;

use blake3::Hasher;

use crate::checkpoint::Checkpoint;
use crate::container::TensorInfo;
use crate::files::{LoadError, ModelFile};

/// Bytes per read.
const PART: usize = 1 << 20;

/// Reads every tensor once: at the disk's speed, or some GB/s from the page cache.
///
/// `not_after`: seconds and nanoseconds since 1970 of the load; an error if a file was written to later, because the
/// loaded weights may differ.
pub(super) fn digest(checkpoint: &Checkpoint, not_after: Option<(i64, i64)>) -> Result<[u8; 32], LoadError> {
    let mut digests: BTreeMap<String, [u8; 32]> = BTreeMap::new();
    let mut buffer = vec![0; PART];
    let mut add = |file: ModelFile, tensors: Vec<TensorInfo>| {
        for tensor in &tensors {
            digests.insert(tensor.name.clone(), tensor_digest(&file, tensor, &mut buffer)?);
        }
        // Checked after reading, to include writes during it.
        match (not_after, file.times()) {
            (Some(not_after), Some([_, changed])) if changed > not_after => {
                Err(LoadError::field(file.name(), "time of change", "written to since the weights were loaded"))
            }
            _ => Ok(()),
        }
    };
    checkpoint.container().tensors(checkpoint.files(), &mut add)?;
    let mut all = Hasher::new_derive_key("twostroke weights 1: checkpoint");
    digests.values().for_each(|digest| _ = all.update(digest));
    Ok(*all.finalize().as_bytes())
}

fn tensor_digest(file: &ModelFile, tensor: &TensorInfo, buffer: &mut [u8]) -> Result<[u8; 32], LoadError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Source;
    use std::fs;

    /// Name, type, shape, bytes.
    type Stored<'a> = (&'a str, &'a str, &'a [usize], &'a [u8]);

    const TENSORS: [Stored<'static>; 3] = [
        ("model.norm.weight", "BF16", &[2], &[1, 2, 3, 4]),
        ("model.layers.0.a.weight", "F32", &[1, 2], &[5, 6, 7, 8, 9, 10, 11, 12]),
        ("model.layers.0.b.weight", "BF16", &[2, 1], &[1, 2, 3, 4]),
    ];

    struct Model(testing::Scratch);

    impl Model {
        /// One file for each of `shards`.
        fn of(name: &str, shards: &[&[Stored<'_>]]) -> Model {
            let path = testing::Scratch::new(name);
            let mut map = Vec::new();
            for (number, shard) in shards.iter().enumerate() {
                let file = match shards.len() {
                    1 => "model.safetensors".to_string(),
                    all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
                };
                let (mut header, mut data) = (Vec::new(), Vec::new());
                for (name, dtype, shape, bytes) in *shard {
                    let offsets = [data.len(), data.len() + bytes.len()];
                    header.push(format!(
                        r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#
                    ));
                    data.extend_from_slice(bytes);
                    map.push(format!(r#""{name}":"{file}""#));
                }
                let header = format!("{{{}}}", header.join(","));
                let whole = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
                fs::write(path.join(file), whole).unwrap();
            }
            if shards.len() > 1 {
                let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
                fs::write(path.join("model.safetensors.index.json"), index).unwrap();
            }
            Model(path)
        }

        fn digest(&self, not_after: Option<(i64, i64)>) -> Result<[u8; 32], LoadError> {
            digest(&Checkpoint::open(Source::Directory(self.0.to_path_buf())).unwrap(), not_after)
        }
    }

    #[test]
    fn weights_are_the_same_in_any_files_and_in_any_order() {
        let [a, b, c] = TENSORS;
        let whole = Model::of("whole", &[&[a, b, c]]).digest(None).unwrap();
        for (name, shards) in [("order", vec![&[c, a, b][..]]), ("shards", vec![&[b][..], &[a, c]])] {
            assert_eq!(Model::of(name, &shards).digest(None).unwrap(), whole, "{name}");
        }
    }

    #[test]
    fn nothing_can_be_changed_unseen() {
        let whole = Model::of("honest", &[&TENSORS]).digest(None).unwrap();
        let [a, b, c] = TENSORS;
        let mut others: Vec<(String, Vec<Stored<'_>>)> = vec![
            ("left-out".into(), vec![a, b]),
            ("name".into(), vec![("model.norm.bias", a.1, a.2, a.3), b, c]),
            ("type".into(), vec![(a.0, "F16", a.2, a.3), b, c]),
            ("shape".into(), vec![a, (b.0, b.1, &[2, 1], b.3), c]),
            ("dimensions".into(), vec![(a.0, a.1, &[1, 2], a.3), b, c]),
            ("exchanged".into(), vec![(c.0, a.1, a.2, a.3), b, (a.0, c.1, c.2, c.3)]),
        ];
        let flipped: Vec<[u8; 8]> = (0..64)
            .map(|bit| {
                let mut bytes: [u8; 8] = b.3.try_into().unwrap();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            })
            .collect();
        for (bit, bytes) in flipped.iter().enumerate() {
            others.push((format!("bit-{bit}"), vec![a, (b.0, b.1, b.2, bytes), c]));
        }
        for (name, tensors) in &others {
            assert_ne!(Model::of(name, &[tensors]).digest(None).unwrap(), whole, "{name}");
        }
    }

    #[test]
    fn a_file_that_was_written_to_since_is_refused() {
        let model = Model::of("since", &[&TENSORS]);
        assert!(model.digest(Some((i64::MAX, 0))).is_ok());
        let error = model.digest(Some((0, 0))).unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("written to since"), "{error}");
    }
}
