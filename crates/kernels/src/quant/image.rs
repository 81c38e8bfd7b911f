//! A packed matrix as bytes, and back: for an image of a model's weights on disk.
//!
//! The layout is the same on every instruction set, so an image made by one serves all. A change of the layout, of a
//! quantizer or of a rounding must raise [`LAYOUT_VERSION`]; a test here checks a digest that changes with them.

use super::{INT4_RATIOS, INT8_GROUP, Levels, MatrixShape, PAIR, PackedMatrix, Ratios, WeightClass, num_scales};
use crate::mem::{Buffer, OutOfMemory};
use crate::node_parts::NodeParts;
use crate::threads::{Pool, share};
use std::sync::{Arc, Mutex};

/// Raised whenever packing the same rows gives other bytes, and whenever the same model is packed as other matrices.
pub const LAYOUT_VERSION: u32 = 9;

/// Source of an image's bytes: `source.0(offset, out)` fills `out` from `offset`, relative to the matrix's first byte.
/// Called from several threads, once per byte, and always for whole pieces ([`PackedMatrix::image_pieces`]).
pub struct ByteSource<'a>(pub &'a (dyn Fn(u64, &mut [u8]) + Sync));

/// The bytes of a packed matrix, kept alive by this handle: a separate thread may write them to disk while the matrix is
/// in use.
#[derive(Clone, Debug)]
pub struct Image {
    tiles: Arc<NodeParts>,
    scales: Arc<Buffer<f32>>,
    /// For int4: the level table.
    levels: Option<Levels>,
}

impl Image {
    /// The bytes in the pieces of [`PackedMatrix::image_pieces`], one after the other: [`PackedMatrix::image_bytes`] in
    /// total. The last is the 16 levels of int4.
    pub fn pieces(&self) -> Vec<&[u8]> {
        let levels: &[u8] = self.levels.as_ref().map_or(&[], |levels| levels.bytes());
        let behind = [self.scales.as_bytes(), levels].into_iter().filter(|piece| !piece.is_empty());
        self.tiles.pieces().chain(behind).collect()
    }
}

impl PackedMatrix {
    /// A second handle to the matrix's bytes; copies nothing. `None` for weights in the quantization groups of a file,
    /// which load from it as fast as from an image.
    pub fn image(&self) -> Option<Image> {
        let levels = (self.class == WeightClass::Int4).then_some(self.levels);
        let image = || Image { tiles: self.tiles.clone(), scales: self.scales.clone(), levels };
        self.blocks.is_none().then(image)
    }

    /// Bytes of the image of a matrix; `None` when the shape is empty or too large.
    pub fn image_bytes(shape: MatrixShape, class: WeightClass) -> Option<usize> {
        PackedMatrix::bytes_of(shape, class)?.checked_add(level_bytes(class))
    }

    /// The ends of an image's pieces, in order: each holds some outputs of the matrix, the last ones what all share.
    /// Readers receive whole pieces, on any number of threads, so each can have a separate digest. `None` as for
    /// [`image_bytes`](Self::image_bytes).
    pub fn image_pieces(shape: MatrixShape, class: WeightClass) -> Option<impl Iterator<Item = u64> + Clone> {
        let (tiles, scales) = sizes(shape, class)?;
        let pair = tiles / shape.out_features.div_ceil(PAIR);
        let scales_end = tiles + scales * size_of::<f32>();
        let behind = [scales_end, scales_end + level_bytes(class)];
        let mut last = tiles;
        let behind = behind.into_iter().filter(move |&end| std::mem::replace(&mut last, end) < end);
        Some((pair..=tiles).step_by(pair).chain(behind).map(|end| end as u64))
    }

    /// Bytes in memory of a matrix packed from f32 rows; `None` when the shape is empty or too large.
    pub fn bytes_of(shape: MatrixShape, class: WeightClass) -> Option<usize> {
        let (tiles, scales) = sizes(shape, class)?;
        tiles.checked_add(scales * size_of::<f32>())
    }

    /// The inverse of [`image`](Self::image): all threads copy at the speed of memory, each into its share. Bytes are not
    /// verified: wrong ones give a wrong matrix.
    pub fn restore(
        pool: Option<&Pool>,
        shape: MatrixShape,
        class: WeightClass,
        source: &ByteSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        let (tile_bytes, count) = sizes(shape, class).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut scales = Buffer::<f32>::zeroed(count)?;
        let pairs = shape.out_features.div_ceil(PAIR);
        let pair_bytes = tile_bytes / pairs;
        let mut tiles = NodeParts::zeroed(pool.map(Pool::nodes), pairs, pair_bytes)?;
        let threads = pool.map_or(1, Pool::threads);
        // The shares of decode: the thread that later reads a strip writes it first. Each thread's share is on one node.
        let mut runs = tiles.runs_mut();
        let mut rest: &mut [u8] = &mut [];
        let mut at = 0;
        let shares: Vec<_> = (0..threads)
            .map(|thread| {
                let own_bytes = share(pairs, threads, thread).len() * pair_bytes;
                while rest.is_empty() && own_bytes > 0 {
                    rest = runs.next().expect("runs have what shares have");
                }
                let (own, others) = std::mem::take(&mut rest).split_at_mut(own_bytes);
                let first = at;
                (rest, at) = (others, at + own.len());
                Mutex::new((first as u64, own))
            })
            .collect();
        let fill = |thread: usize| {
            let mut part = shares[thread].lock().unwrap();
            let (first, own) = &mut *part;
            (source.0)(*first, own);
        };
        match pool {
            Some(pool) => pool.run(&fill),
            None => fill(0),
        }
        drop(shares);
        drop(runs);
        if count > 0 {
            (source.0)(tile_bytes as u64, scales.as_bytes_mut());
        }
        let mut levels = [0; 16];
        if class == WeightClass::Int4 {
            (source.0)((tile_bytes + count * size_of::<f32>()) as u64, &mut levels);
        }
        let levels = if levels == *Levels::Uneven.bytes() { Levels::Uneven } else { Levels::Even };
        let ratios = ratios_in(class, &tiles, shape.in_features, pairs);
        let (tiles, scales) = (Arc::new(tiles), Arc::new(scales));
        let shifted = scales.iter().skip(pairs * PAIR).any(|exponents| exponents.to_bits() != 0);
        Ok(PackedMatrix { shape, class, blocks: None, tiles, scales, ratios, levels, shifted })
    }
}

/// The class of the largest ratio in a matrix's bytes.
fn ratios_in(class: WeightClass, tiles: &NodeParts, in_features: usize, pairs: usize) -> Ratios {
    let of = |bytes: &[u8]| bytes.iter().map(|&byte| Ratios::of(&[byte as i8])).max().unwrap_or(Ratios::One);
    let pairs = (0..pairs).map(|pair| tiles.piece(pair));
    match class {
        WeightClass::Bf16 => Ratios::One,
        WeightClass::Int8 => {
            pairs.map(|pair| of(&pair[..in_features.div_ceil(INT8_GROUP) * PAIR])).max().unwrap_or(Ratios::One)
        }
        WeightClass::Int4 => {
            let steps = pairs.flat_map(|pair| pair.chunks_exact(class.step_bytes()));
            steps.map(|step| of(&step[..INT4_RATIOS])).max().unwrap_or(Ratios::One)
        }
    }
}

/// Bytes of the levels behind the scales.
fn level_bytes(class: WeightClass) -> usize {
    if class == WeightClass::Int4 { Levels::Even.bytes().len() } else { 0 }
}

/// Bytes of tiles, and number of scales.
fn sizes(shape: MatrixShape, class: WeightClass) -> Option<(usize, usize)> {
    if shape.out_features == 0 || shape.in_features == 0 {
        return None;
    }
    let pairs = shape.out_features.div_ceil(PAIR);
    if shape.in_features > isize::MAX as usize / PAIR {
        return None;
    }
    let steps = shape.in_features.div_ceil(class.step()).checked_mul(class.step_bytes())?;
    let pair_bytes = steps.checked_add(class.ratio_bytes(shape.in_features))?;
    Some((pairs.checked_mul(pair_bytes)?, num_scales(shape, class)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::quant::{Int4Source, RowSource};
    use crate::threads::NodeChoice;

    fn packed(class: WeightClass, shape: MatrixShape) -> PackedMatrix {
        let rows = |row: usize, to: &mut [f32]| {
            let values = (0..to.len()).map(|k| ((row * 31 + k * 17) % 251) as f32 / 125.0 - 1.0);
            to.iter_mut().zip(values).for_each(|(to, value)| *to = value);
        };
        PackedMatrix::pack(None, Isa::Scalar, shape, class, &RowSource(&rows)).unwrap()
    }

    #[test]
    fn an_image_gives_the_matrix_back() {
        // On one memory node and on several, some of them without a strip.
        let on = |threads, nodes| Some(Pool::on(threads, NodeChoice::Imagined(nodes)).unwrap());
        let pools = [None, on(1, 1), on(2, 1), on(2, 2), on(5, 3)];
        for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
            for (out_features, in_features) in [(1, 1), (33, 65), (100, 200)] {
                let shape = MatrixShape { out_features, in_features };
                let matrix = packed(class, shape);
                let image = matrix.image().unwrap().pieces().concat();
                assert_eq!(Some(image.len()), PackedMatrix::image_bytes(shape, class));
                assert_eq!(image.len(), matrix.bytes() + level_bytes(class));
                let ends: Vec<u64> = PackedMatrix::image_pieces(shape, class).unwrap().collect();
                assert_eq!(ends.last(), Some(&(image.len() as u64)));
                assert!(ends.is_sorted_by(|a, b| a < b), "no piece is empty");
                let source = |at: u64, out: &mut [u8]| {
                    let whole = |at: u64| at == 0 || ends.contains(&at);
                    assert!(whole(at) && whole(at + out.len() as u64), "{class:?} {shape:?}: a part of a piece");
                    out.copy_from_slice(&image[at as usize..][..out.len()]);
                };
                for pool in &pools {
                    let back = PackedMatrix::restore(pool.as_ref(), shape, class, &ByteSource(&source)).unwrap();
                    assert_eq!(back.image().unwrap().pieces().concat(), image, "{class:?} {shape:?}");
                    assert_eq!(back.levels(), matrix.levels());
                }
            }
        }
    }

    #[test]
    fn an_image_knows_whether_ratios_are_wide() {
        let shape = MatrixShape { out_features: 33, in_features: 100 };
        // Scales of `1` and `1 / steps`: that many steps are needed, for 0.03 more than 15.
        for (other, wanted) in [(1.0f32, Ratios::One), (1.0 / 15.0, Ratios::Narrow), (0.03, Ratios::Wide)] {
            let rows = |row: usize, q: &mut [i8], scales: &mut [f32]| {
                q.fill(-8);
                scales.fill(1.0);
                scales[0] = if row == 32 { other } else { 1.0 };
            };
            let matrix = PackedMatrix::pack_int4(None, Isa::Scalar, shape, &Int4Source(&rows)).unwrap();
            let image = matrix.image().unwrap().pieces().concat();
            let source = |at: u64, out: &mut [u8]| out.copy_from_slice(&image[at as usize..][..out.len()]);
            let back = PackedMatrix::restore(None, shape, WeightClass::Int4, &ByteSource(&source)).unwrap();
            assert_eq!((matrix.ratios(), back.ratios()), (wanted, wanted), "scales of 1 and {other}");
            assert_eq!((matrix.levels(), back.levels()), (Levels::Even, Levels::Even));
        }
    }

    #[test]
    fn the_version_changes_with_the_layout() {
        let digests = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4].map(|class| {
            let image =
                packed(class, MatrixShape { out_features: 70, in_features: 130 }).image().unwrap().pieces().concat();
            // FNV-1a
            image
                .iter()
                .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        });
        assert_eq!(
            (LAYOUT_VERSION, digests),
            (9, [18_392_729_095_886_358_030, 1_102_915_708_654_288_656, 1_321_819_069_235_834_817]),
            "other bytes: raise LAYOUT_VERSION, then note them here"
        );
    }
}
