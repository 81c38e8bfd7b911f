//! The trait of model formats: texts by their names in a Hugging Face directory, tensors by their names in the forward
//! pass.
//!
//! ```text
//! Container ── text("config.json"), text("tokenizer.json") ...    read, or generated from a file's metadata
//!           ├─ tensors(add)      each file with its TensorInfos: name, encoding, shape, offset
//!           └─ translate_error   messages name keys and tensors as in the file
//! ```
//! There is one definition of a model, that of transformers; a container translates to it.

use std::fmt;

use crate::blocks::BlockType;
use crate::encoding::Encoding;
use crate::files::{Files, LoadError, ModelFile};

/// Takes a file and the tensors in it.
pub(crate) type AddFile<'a> = dyn FnMut(ModelFile, Vec<TensorInfo>) -> Result<(), LoadError> + 'a;

/// A format of models.
pub(crate) trait Container: fmt::Debug + Send + Sync {
    /// The text of the file `name` of a Hugging Face directory (`config.json`, `tokenizer.json`, ...), if there is one.
    /// A file that is read may have `limit` bytes.
    fn text(&self, files: &Files, name: &str, limit: u64) -> Result<Option<String>, LoadError>;

    /// Opens every file, checks every header, and passes each file with its tensors to `add`, under their names in the
    /// forward pass. Reads no tensor. Returns the name of the file that lists them, for messages.
    fn tensors(&self, files: &Files, add: &mut AddFile<'_>) -> Result<String, LoadError>;

    /// The `config.json` with the quantization of modules, if any; `None` if the tensor types define it.
    fn quantization(&self, files: &Files, limit: u64) -> Result<Option<String>, LoadError>;

    /// Whether metadata replaces the file of that name, even if invalid.
    fn replaces(&self, _files: &Files, _name: &str) -> bool {
        false
    }

    /// Translates an error about a text of [`text`](Self::text) to the file and key that the text was generated from.
    fn translate_error(&self, error: LoadError) -> LoadError {
        error
    }

    /// A tensor's name in its file.
    fn name_in_file(&self, name: &str) -> String {
        name.to_string()
    }

    /// The key of the number of layers, for messages.
    fn layers_key(&self) -> String {
        "num_hidden_layers of config.json".to_string()
    }
}

/// Heads of values that are stored in another order: of `key_heads` key heads, each with `per_key` heads of values,
/// first the first heads of all, then the second ones, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TiledHeads {
    /// Rows (or numbers of a row) before the heads.
    pub(crate) first: usize,
    /// Rows (or numbers) of a head.
    pub(crate) width: usize,
    pub(crate) key_heads: usize,
    pub(crate) per_key: usize,
}

impl TiledHeads {
    /// Rows (or numbers) in all.
    pub(crate) fn len(self) -> usize {
        self.first + self.key_heads * self.per_key * self.width
    }

    /// Index of row (or number) `index` in the file.
    fn stored(self, index: usize) -> usize {
        let Some(in_heads) = index.checked_sub(self.first) else { return index };
        let head = in_heads / self.width;
        let (key_head, of_key) = (head / self.per_key, head % self.per_key);
        self.first + (of_key * self.key_heads + key_head) * self.width + in_heads % self.width
    }
}

/// A converter's change of a tensor, to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredAs {
    /// Unchanged.
    Itself,
    /// Rows `i` and `head_dim / 2 + i` of a head are neighbours `2 i` and `2 i + 1`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
    /// 1 was added to every number.
    PlusOne,
    /// Every number has the other sign.
    Negative,
    /// Rows, or the numbers of a vector, are those of heads in another order.
    Tiled(TiledHeads),
    /// The same, and every number has the other sign.
    TiledNegative(TiledHeads),
    /// The numbers of each row are those of heads in another order.
    TiledColumns(TiledHeads),
}

impl StoredAs {
    /// Index of row `row` in the file.
    pub(crate) fn row(self, row: usize) -> usize {
        match self {
            StoredAs::Itself | StoredAs::PlusOne | StoredAs::Negative | StoredAs::TiledColumns(_) => row,
            StoredAs::Tiled(heads) | StoredAs::TiledNegative(heads) => heads.stored(row),
            StoredAs::Interleaved { head_dim } => {
                let (head, in_head) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + in_head % half * 2 + in_head / half
            }
        }
    }

    /// Undoes the change in a vector: a bias or a norm, some thousand numbers, once at load.
    pub(crate) fn restore(self, vector: &mut [f32]) {
        match self {
            StoredAs::Itself | StoredAs::TiledColumns(_) => {}
            StoredAs::Interleaved { .. } | StoredAs::Tiled(_) => self.reorder(vector),
            StoredAs::TiledNegative(_) => {
                self.reorder(vector);
                StoredAs::Negative.restore(vector);
            }
            StoredAs::PlusOne => vector.iter_mut().for_each(|value| *value -= 1.0),
            StoredAs::Negative => vector.iter_mut().for_each(|value| *value = -*value),
        }
    }

    fn reorder(self, vector: &mut [f32]) {
        let stored = vector.to_vec();
        vector.iter_mut().enumerate().for_each(|(row, out)| *out = stored[self.row(row)]);
    }

    /// Undoes the change within a row, of which one of `values` stands for `of` numbers.
    pub(crate) fn restore_columns<T: Copy>(self, values: &mut [T], of: usize) {
        let StoredAs::TiledColumns(heads) = self else { return };
        let stored = values.to_vec();
        values.iter_mut().enumerate().for_each(|(index, out)| *out = stored[heads.stored(index * of) / of]);
    }

    /// Whether the change leaves groups of that many numbers of a row whole.
    pub(crate) fn keeps_groups(self, group: usize) -> bool {
        match self {
            StoredAs::TiledColumns(heads) => heads.width.is_multiple_of(group) && heads.first.is_multiple_of(group),
            _ => true,
        }
    }
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) encoding: Encoding,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    pub(crate) stored: StoredAs,
}

/// An error unless a tensor has the expected shape and a supported encoding. `shown`: its name in the file.
pub(crate) fn check_readable(
    file: &str,
    shown: &str,
    (found, encoding): (&[usize], Option<Encoding>),
    expected: &[usize],
) -> Result<(), LoadError> {
    // Dimensions of one before the others are no other order of numbers.
    let inner = |shape: &[usize]| shape.iter().skip_while(|dim| **dim == 1).copied().collect::<Vec<_>>();
    if found != expected && (expected.len() != 1 || inner(found) != inner(expected)) {
        return Err(LoadError::Shape {
            file: file.to_string(),
            tensor: shown.to_string(),
            expected: expected.to_vec(),
            found: found.to_vec(),
        });
    }
    match encoding {
        Some(encoding) if !encoding.is_decoded() => {
            let blocks = BlockType::ALL.map(BlockType::name).join(", ");
            let problem = format!(
                "type {} is unknown; weights are read from BF16, F16, F32, and of GGUF files {blocks}",
                encoding.name()
            );
            Err(LoadError::field(file, format!("tensor {shown:?}"), problem))
        }
        _ => Ok(()),
    }
}

/// The error for a block with a scale that is not finite, which leaves its weights undefined. `number`: index of the
/// first affected number, from the start of the tensor in its file.
pub(crate) fn broken_block(file: &str, shown: &str, block: BlockType, number: usize) -> LoadError {
    let (at, name) = (number / block.size().0, block.name());
    let problem = format!("a scale of block {at} of {name} is not a finite number");
    LoadError::field(file, format!("tensor {shown:?}"), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_values_go_back_beside_their_key_heads() {
        let heads = TiledHeads { first: 1, width: 2, key_heads: 2, per_key: 3 };
        // A row's number before the heads, then key head 0's first head, key head 1's first head, and so on.
        let stored = [9., 0.0, 0.1, 3.0, 3.1, 1.0, 1.1, 4.0, 4.1, 2.0, 2.1, 5.0, 5.1];
        let wanted = [9., 0.0, 0.1, 1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1, 5.0, 5.1];
        assert_eq!(stored.len(), heads.len());
        let restored = |how: StoredAs, columns: bool| {
            let mut values = stored;
            if columns {
                how.restore_columns(&mut values, 1)
            } else {
                how.restore(&mut values)
            }
            values
        };
        assert_eq!(restored(StoredAs::Tiled(heads), false), wanted);
        assert_eq!(restored(StoredAs::TiledNegative(heads), false), wanted.map(|value: f32| -value));
        assert_eq!(restored(StoredAs::TiledColumns(heads), true), wanted);
        assert_eq!(restored(StoredAs::Tiled(heads), true), stored, "its rows move and no number in them");
        // Of groups with a scale each, whole ones alone.
        let wide = TiledHeads { first: 0, width: 32, ..heads };
        let mut scales = [0, 3, 1, 4, 2, 5];
        StoredAs::TiledColumns(wide).restore_columns(&mut scales, 32);
        assert_eq!(scales, [0, 1, 2, 3, 4, 5]);
        for (group, is_whole) in [(16, true), (32, true), (64, false)] {
            assert_eq!(StoredAs::TiledColumns(wide).keeps_groups(group), is_whole, "{group}");
        }
    }
}
