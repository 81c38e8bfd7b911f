//! The random numbers: a function of a counter and a key, without shared state.

/// Philox-4x32-10 (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random
/// words as a pure function of a counter and a key.
pub fn philox(mut counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        counter = mix(counter, key_of(key, round));
    }
    counter
}

const ROUNDS: u32 = 10;

#[inline(always)]
fn mix(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let left = u64::from(counter[0]) * 0xD251_1F53;
    let right = u64::from(counter[2]) * 0xCD9E_8D57;
    [(right >> 32) as u32 ^ counter[1] ^ key[0], right as u32, (left >> 32) as u32 ^ counter[3] ^ key[1], left as u32]
}

#[inline(always)]
fn key_of(key: [u32; 2], round: u32) -> [u32; 2] {
    [key[0].wrapping_add(0x9E37_79B9u32.wrapping_mul(round)), key[1].wrapping_add(0xBB67_AE85u32.wrapping_mul(round))]
}

/// The words of the `CALLS` counters `[position, stream, first..]`, one call after the other; `WORDS` is `4 * CALLS`.
/// Written for auto-vectorization: call it where the instruction set is known.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "one index into four arrays")]
pub(super) fn philox_many<const CALLS: usize, const WORDS: usize>(
    position: [u32; 2],
    stream: u32,
    first: u32,
    key: [u32; 2],
) -> [u32; WORDS] {
    let mut words = [[position[0]; CALLS], [position[1]; CALLS], [stream; CALLS], [0; CALLS]];
    for call in 0..CALLS {
        words[3][call] = first + call as u32;
    }
    for round in 0..ROUNDS {
        let key = key_of(key, round);
        for call in 0..CALLS {
            let mixed = mix(std::array::from_fn(|word| words[word][call]), key);
            for word in 0..4 {
                words[word][call] = mixed[word];
            }
        }
    }
    std::array::from_fn(|i| words[i % 4][i / 4])
}
