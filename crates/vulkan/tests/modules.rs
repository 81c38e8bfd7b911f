//! What the committed kernels are: what their sources compile to, and nothing that rounds as a driver likes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testing::Scratch;

fn own(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// The modules of a folder, by name.
fn modules(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    all.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap())).collect()
}

#[test]
fn they_are_what_their_sources_compile_to() {
    let place = Scratch::new("spirv");
    let compiled = Command::new(own("compile.sh")).arg(place.to_path_buf()).output().expect("sh");
    let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "compile.sh needs what compile.txt lists: {said}");
    let (committed, fresh) = (modules(&own("spirv")), modules(&place));
    assert_eq!(committed.keys().collect::<Vec<_>>(), fresh.keys().collect::<Vec<_>>(), "each source has a module");
    for (name, code) in &committed {
        assert!(*code == fresh[name], "{name} is not what its source compiles to: run crates/vulkan/compile.sh");
    }
}

/// Instructions of a module: opcodes and operands.
fn instructions(code: &[u8]) -> Vec<(u16, Vec<u32>)> {
    let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(words[0], 0x0723_0203, "a module");
    let (mut at, mut all) = (5, Vec::new());
    while at < words.len() {
        let (opcode, count) = (words[at] as u16, (words[at] >> 16) as usize);
        all.push((opcode, words[at + 1..at + count].to_vec()));
        at += count;
    }
    all
}

// Of the specification of SPIR-V 1.6.
const CAPABILITY: u16 = 17;
const EXT_INST: u16 = 12;
const DECORATE: u16 = 71;
const NO_CONTRACTION: u32 = 42;
const SPEC_ID: u32 = 1;
const FUNCTION: u16 = 54;
/// Additions, subtractions, products and negations of floats.
const ROUNDS: [u16; 4] = [127, 129, 131, 133];
const QUOTIENT: u16 = 136;
/// Products with vectors and matrices, remainders, dots of floats.
const REFUSED: [u16; 9] = [140, 141, 142, 143, 144, 145, 146, 147, 148];
/// Sums over subgroups, and atomic sums of floats.
const ORDERLESS: [u16; 5] = [264, 265, 349, 350, 6035];
/// Of GLSL.std.450: roots, fused multiply-adds, and what compares.
const ROOT: u32 = 31;
const KNOWN_FUNCTIONS: [u32; 9] = [ROOT, 38, 39, 41, 42, 44, 45, 50, 73];
/// Shader, products of four bytes, and addresses.
const KNOWN_CAPABILITIES: [u32; 4] = [1, 6018, 6019, 5347];
/// Bytes, subgroups, Vulkan's model of memory and matrices: of what is compiled where there are matrices of bytes.
const CAPABILITIES_OF_MATRICES: [u32; 4] = [39, 61, 5345, 6022];

/// What a module has that rounds as a driver likes.
fn complaints(name: &str, all: &[(u16, Vec<u32>)]) -> Vec<String> {
    let of_matrices: &[u32] = if name.contains("matri") { &CAPABILITIES_OF_MATRICES } else { &[] };
    let is_exact = |(op, of): &&(u16, Vec<u32>)| *op == DECORATE && of[1] == NO_CONTRACTION;
    let exact: BTreeSet<u32> = all.iter().filter(is_exact).map(|(_, of)| of[0]).collect();
    let is_known = |(op, of): &(u16, Vec<u32>)| match *op {
        CAPABILITY => KNOWN_CAPABILITIES.iter().chain(of_matrices).any(|known| *known == of[0]),
        EXT_INST => KNOWN_FUNCTIONS.contains(&of[3]),
        _ => !REFUSED.contains(op) && !ORDERLESS.contains(op),
    };
    let of_unknown = |(op, of): &(u16, Vec<u32>)| format!("opcode {op} of {of:?}");
    let mut found: Vec<_> = all.iter().filter(|it| !is_known(it)).map(of_unknown).collect();
    // Estimates, which exact integers correct, are in the functions of quotients and roots alone.
    for function in all.split(|(op, _)| *op == FUNCTION).skip(1) {
        let estimates = function.iter().any(|(op, of)| *op == QUOTIENT || *op == EXT_INST && of[3] == ROOT);
        let rounds = function.iter().filter(|(op, of)| ROUNDS.contains(op) && !estimates && !exact.contains(&of[1]));
        found.extend(rounds.map(|(op, of)| format!("opcode {op}, result {}, may be contracted", of[1])));
    }
    found
}

#[test]
fn every_float_operation_is_rounded_alone() {
    let mut planted = 0;
    for (name, code) in modules(&own("spirv")) {
        let all = instructions(&code);
        assert_eq!(complaints(&name, &all), Vec::<String>::new(), "{name}");
        // By this constant a test reverses the order of its workgroups.
        assert!(all.iter().any(|(op, of)| *op == DECORATE && of[1..] == [SPEC_ID, 2]), "{name}");
        // A source that forgets one `precise` would be found.
        for (op, of) in all.iter().filter(|(op, _)| ROUNDS.contains(op)) {
            let is_its = |(other, its): &&(u16, Vec<u32>)| *other == DECORATE && *its == [of[1], NO_CONTRACTION];
            let Some(at) = all.iter().position(|instruction| is_its(&instruction)) else { continue };
            let mut without = all.clone();
            without.remove(at);
            planted +=
                usize::from(complaints(&name, &without).iter().any(|said| said.contains(&format!("opcode {op}, "))));
        }
    }
    assert!(planted > 300, "{planted}");
}
