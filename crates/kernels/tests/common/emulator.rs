//! Tile instructions in software: a handler of SIGILL executes them as the Intel SDM (volume 2, and volume 1 chapter
//! 18) defines them.

use std::cell::{Cell, UnsafeCell};
use std::sync::Once;

const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// A thread's tile state: the configuration and eight tiles. All zero is the state before `ldtilecfg`.
struct State {
    configured: bool,
    rows: [u8; 8],
    row_bytes: [u16; 8],
    tiles: [[[u8; ROW_BYTES]; ROWS]; 8],
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State {
            configured: false,
            rows: [0; 8],
            row_bytes: [0; 8],
            tiles: [[[0; ROW_BYTES]; ROWS]; 8],
        })
    };
}

/// What the calling thread has executed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) configurations: usize,
    pub(crate) loads: usize,
    /// Bytes that they loaded.
    pub(crate) bytes: usize,
    pub(crate) stores: usize,
    /// Products of two tiles.
    pub(crate) products: usize,
}

thread_local! {
    static COUNTS: Cell<Counts> = const {
        Cell::new(Counts { configurations: 0, loads: 0, bytes: 0, stores: 0, products: 0 })
    };
}

/// What the calling thread executes in `f`.
pub(crate) fn counts(f: impl FnOnce()) -> Counts {
    COUNTS.set(Counts::default());
    f();
    COUNTS.get()
}

fn count(add: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    add(&mut counts);
    COUNTS.set(counts);
}

/// Makes SIGILL execute tile instructions, for the whole process. The CPU has AVX-512, as proofs of tiles demand.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a handler with the signature that SA_SIGINFO asks for; it uses no lock and allocates nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_illegal_instruction as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
        }
    });
}

extern "C" fn on_illegal_instruction(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted thread's registers, which are this handler's alone for now.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = registers[libc::REG_RIP as usize] as usize;
    let executed = STATE.with(|state| {
        // SAFETY: tile state is this thread's own, and a handler of SIGILL is not interrupted by another.
        unsafe { execute(rip, registers, &mut *state.get()) }
    });
    match executed {
        Some(length) => registers[libc::REG_RIP as usize] += length as i64,
        // Not a tile instruction: let it happen again, for real.
        None => unsafe {
            // SAFETY: restores the default action.
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        },
    }
}

/// The operands of a VEX-encoded instruction.
struct Decoded {
    /// Mandatory prefix: 0 none, 1 = 66, 2 = F3, 3 = F2.
    prefix: u8,
    opcode: u8,
    register_form: bool,
    reg: usize,
    rm: usize,
    vvvv: usize,
    /// Memory operand: base plus displacement, and the scaled index (the stride of a tile in memory).
    address: usize,
    stride: usize,
    length: usize,
}

/// The general registers by their number in an instruction.
const GENERAL: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Reads a three-byte VEX instruction of map 0F38, the form of every tile instruction (Intel SDM volume 2, 2.3).
///
/// # Safety
/// `rip` is the address of the instruction that was interrupted.
unsafe fn decode(rip: usize, registers: &[i64; 23]) -> Option<Decoded> {
    // SAFETY: an instruction is at most 15 bytes, and its bytes are readable as far as it goes.
    let byte = |at: usize| unsafe { *((rip + at) as *const u8) };
    let general = |number: usize| registers[GENERAL[number] as usize] as usize;
    if byte(0) != 0xc4 || byte(1) & 0x1f != 2 {
        return None;
    }
    let inverted = |bit: u32| usize::from(byte(1) >> bit & 1 == 0) * 8;
    let (reg_high, index_high, base_high) = (inverted(7), inverted(6), inverted(5));
    let wide_or_long = byte(2) & 0b1000_0100 != 0;
    if wide_or_long {
        return None;
    }
    let modrm = byte(4);
    let (mode, rm) = (modrm >> 6, usize::from(modrm & 7));
    let mut decoded = Decoded {
        prefix: byte(2) & 3,
        opcode: byte(3),
        register_form: mode == 3,
        reg: usize::from(modrm >> 3 & 7) + reg_high,
        rm: rm + base_high,
        vvvv: usize::from(!byte(2) >> 3 & 0xf),
        address: 0,
        stride: 0,
        length: 5,
    };
    if mode == 3 {
        return Some(decoded);
    }
    let mut displacement_bytes = [0, 1, 4][usize::from(mode)];
    let mut base = Some(rm + base_high);
    if rm == 4 {
        let sib = byte(5);
        decoded.length += 1;
        let index = usize::from(sib >> 3 & 7) + index_high;
        decoded.stride = if index == 4 { 0 } else { general(index) << (sib >> 6) };
        base = Some(usize::from(sib & 7) + base_high);
        if sib & 7 == 5 && mode == 0 {
            (base, displacement_bytes) = (None, 4);
        }
    } else if rm == 5 && mode == 0 {
        return None; // relative to RIP: the kernels do not use it
    }
    let displacement = match displacement_bytes {
        1 => byte(decoded.length) as i8 as isize,
        4 => i32::from_le_bytes(std::array::from_fn(|i| byte(decoded.length + i))) as isize,
        _ => 0,
    };
    decoded.length += displacement_bytes;
    decoded.address = base.map_or(0, general).wrapping_add_signed(displacement);
    Some(decoded)
}

/// Executes the instruction at `rip` and returns its length, or `None` if it is not a tile instruction.
///
/// # Safety
/// `rip` and `registers` are those of the interrupted thread, whose memory operands are valid.
unsafe fn execute(rip: usize, registers: &[i64; 23], state: &mut State) -> Option<usize> {
    // SAFETY: the caller's promise.
    let at = unsafe { decode(rip, registers) }?;
    match (at.opcode, at.prefix, at.register_form) {
        // SAFETY: the instruction's memory operand is 64 bytes.
        (0x49, 0, false) => state.configure(unsafe { &*(at.address as *const [u8; 64]) }),
        (0x49, 0, true) => state.release(),
        (0x49, 3, true) => *state.tile(at.reg) = [[0; ROW_BYTES]; ROWS],
        // SAFETY: the instruction's memory operand is the tile's rows, `stride` apart.
        (0x4b, 1 | 3, false) => unsafe { state.load(at.reg, at.address, at.stride) },
        // SAFETY: as above.
        (0x4b, 2, false) => unsafe { state.store(at.reg, at.address, at.stride) },
        // SAFETY: `install` is called where there is AVX-512.
        (0x5e, 3, true) => unsafe { state.multiply_int8(at.reg, at.rm, at.vvvv) },
        // SAFETY: as above.
        (0x5c, 2, true) => unsafe { state.multiply_bf16(at.reg, at.rm, at.vvvv) },
        _ => return None,
    }
    Some(at.length)
}

/// What the CPU would answer with a fault. A panic may not leave a signal handler.
fn demand(condition: bool, what: &'static str) {
    if !condition {
        // SAFETY: writing bytes to standard error and aborting are allowed in a handler.
        unsafe {
            libc::write(2, what.as_ptr().cast(), what.len());
            libc::abort();
        }
    }
}

impl State {
    /// A tile register that the configuration covers, or #UD.
    fn tile(&mut self, number: usize) -> &mut [[u8; ROW_BYTES]; ROWS] {
        demand(self.configured && number < 8 && self.rows[number] > 0, "use of a tile that is not configured\n");
        &mut self.tiles[number]
    }

    fn release(&mut self) {
        self.configured = false;
        self.rows = [0; 8];
        self.row_bytes = [0; 8];
        self.tiles = [[[0; ROW_BYTES]; ROWS]; 8];
    }

    /// LDTILECFG: checks what the SDM lists under #GP(0), then clears all tiles.
    fn configure(&mut self, bytes: &[u8; 64]) {
        count(|counts| counts.configurations += 1);
        self.release();
        demand(bytes[0] == 1, "palette is not 1\n");
        demand(bytes[1] == 0, "start row is not 0\n");
        demand(bytes[2..16].iter().all(|&byte| byte == 0), "reserved bytes of the configuration are not 0\n");
        for tile in 0..16 {
            let row_bytes = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            let rows = bytes[48 + tile];
            if tile < 8 {
                demand(usize::from(row_bytes) <= ROW_BYTES && usize::from(rows) <= ROWS, "a tile is too large\n");
                demand((rows == 0) == (row_bytes == 0), "rows without bytes, or bytes without rows\n");
                (self.rows[tile], self.row_bytes[tile]) = (rows, row_bytes);
            } else {
                demand(rows == 0 && row_bytes == 0, "configuration of a tile that palette 1 has not\n");
            }
        }
        self.configured = true;
    }

    /// TILELOADD: rows and bytes beyond the configuration become zero.
    ///
    /// # Safety
    /// The configured rows are readable at `address`, `stride` apart.
    unsafe fn load(&mut self, number: usize, address: usize, stride: usize) {
        *self.tile(number) = [[0; ROW_BYTES]; ROWS];
        let (rows, bytes) = (usize::from(self.rows[number]), usize::from(self.row_bytes[number]));
        count(|counts| {
            counts.loads += 1;
            counts.bytes += rows * bytes;
        });
        for (row, to) in self.tiles[number][..rows].iter_mut().enumerate() {
            let from = address.wrapping_add(row.wrapping_mul(stride)) as *const u8;
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        }
    }

    /// TILESTORED.
    ///
    /// # Safety
    /// The configured rows are writable at `address`, `stride` apart.
    unsafe fn store(&mut self, number: usize, address: usize, stride: usize) {
        count(|counts| counts.stores += 1);
        self.tile(number);
        let (rows, bytes) = (usize::from(self.rows[number]), usize::from(self.row_bytes[number]));
        for (row, from) in self.tiles[number][..rows].iter().enumerate() {
            let to = address.wrapping_add(row.wrapping_mul(stride)) as *mut u8;
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, bytes) };
        }
    }

    /// The operands of a product, if their shapes fit (else #UD): `(c, a, b, rows, groups of k, columns)`.
    fn operands(&mut self, c: usize, a: usize, b: usize) -> (usize, usize, usize) {
        demand(c != a && a != b && b != c, "a product needs three different tiles\n");
        for number in [c, a, b] {
            self.tile(number);
        }
        let groups = usize::from(self.row_bytes[a]) / 4;
        demand(self.rows[c] == self.rows[a], "rows of C and A differ\n");
        demand(self.row_bytes[c] == self.row_bytes[b], "columns of C and B differ\n");
        demand(groups == usize::from(self.rows[b]), "depth of A and B differs\n");
        (usize::from(self.rows[c]), groups, usize::from(self.row_bytes[c]) / 4)
    }

    /// TDPBSSD: signed bytes in groups of four, sums modulo 2^32.
    #[target_feature(enable = "avx2,fma")]
    fn multiply_int8(&mut self, c: usize, a: usize, b: usize) {
        count(|counts| counts.products += 1);
        let (rows, groups, columns) = self.operands(c, a, b);
        // By columns, so that the compiler finds vectors.
        for m in 0..rows {
            let mut sums: [i32; ROW_BYTES / 4] =
                std::array::from_fn(|n| i32::from_le_bytes(group(&self.tiles[c][m], n)));
            for k in 0..groups {
                let x = group(&self.tiles[a][m], k).map(|x| i32::from(x as i8));
                for (sum, w) in sums.iter_mut().zip(self.tiles[b][k].as_chunks::<4>().0) {
                    let products: [i32; 4] = std::array::from_fn(|i| x[i] * i32::from(w[i] as i8));
                    *sum = products.into_iter().fold(*sum, i32::wrapping_add);
                }
            }
            for (to, sum) in self.tiles[c][m].as_chunks_mut::<4>().0.iter_mut().zip(sums).take(columns) {
                *to = sum.to_le_bytes();
            }
        }
    }

    /// TDPBF16PS: an even and an odd sum by fused multiply-add, denormals as zero, then both onto C.
    #[target_feature(enable = "avx2,fma")]
    fn multiply_bf16(&mut self, c: usize, a: usize, b: usize) {
        count(|counts| counts.products += 1);
        let (rows, groups, columns) = self.operands(c, a, b);
        for m in 0..rows {
            let mut sums = [[0f32; 2]; ROW_BYTES / 4];
            for k in 0..groups {
                let x = pair(&self.tiles[a][m], k).map(flush);
                for (n, sums) in sums[..columns].iter_mut().enumerate() {
                    for ((sum, x), w) in sums.iter_mut().zip(x).zip(pair(&self.tiles[b][k], n)) {
                        *sum = flush(x.mul_add(flush(w), *sum));
                    }
                }
            }
            for (to, sums) in self.tiles[c][m].as_chunks_mut::<4>().0.iter_mut().zip(&sums[..columns]) {
                let after = flush(flush(f32::from_le_bytes(*to)) + flush(sums[0] + sums[1]));
                *to = after.to_le_bytes();
            }
        }
    }
}

/// Four bytes of a row.
fn group(row: &[u8; ROW_BYTES], index: usize) -> [u8; 4] {
    std::array::from_fn(|i| row[index * 4 + i])
}

/// Two bf16 of a row.
fn pair(row: &[u8; ROW_BYTES], index: usize) -> [f32; 2] {
    let bits = u32::from_le_bytes(group(row, index));
    [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
}

/// A denormal number is zero with its sign.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}
