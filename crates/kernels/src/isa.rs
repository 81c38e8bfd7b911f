//! Instruction sets as values: which paths this CPU can take, found once at start.
//!
//! ```text
//! Isa      an order of preference, chosen by the user or by `best()`
//! Avx2     proofs: holding one means that this CPU has these instructions, so a kernel that asks for one may be
//! Avx512   called safely. `detect` is the only way to make one. Each holds the proof of what it builds on, and gives
//! Avx512Bf16, Amx    it: who has tiles has AVX-512, who has that has AVX2.
//! ```
//! An [`Isa`] is a ceiling, never a promise: `isa.avx512()` gives the proof if the ceiling allows it *and* the CPU has
//! it. Every path returns the same bits, so the choice is about speed only.

/// The paths of [`crate::Cpu`], slowest first. Each implies that the kernels of the ones before it may be used too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// Plain Rust: any CPU.
    Scalar,
    /// AVX2 and FMA: x86-64-v3.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// The same and BF16, whose `vdpbf16ps` computes [`Arithmetic::Pairs`](crate::Arithmetic::Pairs).
    Avx512Bf16,
    /// AMX tiles with int8 and bf16 products (Sapphire Rapids and later); everything else as [`Isa::Avx512Bf16`].
    Amx,
}

impl Isa {
    /// All, slowest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The fastest path that this CPU and operating system allow.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Every path that this CPU can take, slowest first; [`Isa::Scalar`] is always there.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this CPU and operating system allow this path.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => Avx2::detect().is_some(),
            Isa::Avx512 => Avx512::detect().is_some(),
            Isa::Avx512Bf16 => Avx512Bf16::detect().is_some(),
            Isa::Amx => Amx::detect().is_some(),
        }
    }

    /// For people: `scalar`, `avx2`, `avx512`, `avx512bf16`, `amx`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// The path called `name`, as [`Isa::name`] writes it.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// The right to call AVX2 kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn avx2(self) -> Option<Avx2> {
        if self >= Isa::Avx2 { Avx2::detect() } else { None }
    }

    /// The right to call AVX-512 kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn avx512(self) -> Option<Avx512> {
        if self >= Isa::Avx512 { Avx512::detect() } else { None }
    }

    /// The right to call AVX-512 BF16 kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn avx512_bf16(self) -> Option<Avx512Bf16> {
        if self >= Isa::Avx512Bf16 { Avx512Bf16::detect() } else { None }
    }

    /// The right to call AMX kernels, if this ceiling, the CPU and the operating system allow them. Cheap: a cached
    /// load.
    pub fn amx(self) -> Option<Amx> {
        if self >= Isa::Amx { Amx::detect() } else { None }
    }
}

/// Proof that this CPU has AVX2, FMA, F16C and POPCNT.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// `target_feature`: `avx2,fma,f16c,popcnt`.
    pub fn detect() -> Option<Avx2> {
        #[cfg(target_arch = "x86_64")]
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let found = false;
        found.then_some(Avx2(()))
    }
}

/// Proof that this CPU has AVX-512 F, BW, VL, DQ and VNNI (and AVX2 with FMA).
#[derive(Clone, Copy, Debug)]
pub struct Avx512(Avx2);

impl Avx512 {
    /// What it builds on.
    pub fn avx2(self) -> Avx2 {
        self.0
    }

    /// `target_feature`: `avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni`.
    pub fn detect() -> Option<Avx512> {
        #[cfg(target_arch = "x86_64")]
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        #[cfg(not(target_arch = "x86_64"))]
        let found = false;
        Avx2::detect().filter(|_| found).map(Avx512)
    }
}

/// Proof that this CPU has AVX-512 BF16 beside what [`Avx512`] proves.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(Avx512);

impl Avx512Bf16 {
    /// What it builds on.
    pub fn avx512(self) -> Avx512 {
        self.0
    }

    /// `target_feature`: those of [`Avx512::detect`] and `avx512bf16`.
    pub fn detect() -> Option<Avx512Bf16> {
        #[cfg(target_arch = "x86_64")]
        let found = is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let found = false;
        Avx512::detect().filter(|_| found).map(Avx512Bf16)
    }
}

/// Proof that tile instructions (TILE, INT8, BF16) may be executed beside what [`Avx512`] proves: by the CPU and by
/// leave of the operating system, which this process asks for once.
#[derive(Clone, Copy, Debug)]
pub struct Amx(Avx512);

impl Amx {
    /// What it builds on: tile kernels unpack and rescale with vectors.
    pub fn avx512(self) -> Avx512 {
        self.0
    }

    /// Asks CPUID, XCR0 and the kernel, where there is AVX-512; the answer is kept for the life of the process.
    pub fn detect() -> Option<Amx> {
        let vectors = Avx512::detect()?;
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        let found = {
            static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
            *FOUND.get_or_init(|| cpu_has_amx() && kernel_grants_tiles())
        };
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        let found = false;
        found.then_some(Amx(vectors))
    }

    /// A proof of tiles without proof, so that a test may run the tile kernels where an emulator executes them. Of the
    /// vectors that they use beside tiles there is a real one.
    ///
    /// # Safety
    /// Tile instructions must work in this process: natively, or through a SIGILL handler that executes them.
    #[doc(hidden)]
    pub unsafe fn assume(vectors: Avx512) -> Amx {
        Amx(vectors)
    }
}

/// CPUID leaf 7 says TILE, INT8 and BF16, and XCR0 says that the operating system saves tile state.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn cpu_has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller has seen OSXSAVE, which makes XGETBV of register 0 legal.
        unsafe { _xgetbv(0) }
    }

    const TILE_STATE: u64 = 0b11 << 17;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const BF16: u32 = 1 << 22;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    // SAFETY: OSXSAVE (bit 27 above) is set, so XSAVE is there and enabled.
    if unsafe { xcr0() } & TILE_STATE != TILE_STATE {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    [TILE, INT8, BF16].into_iter().all(|bit| edx & bit != 0)
}

/// Linux gives tile state to a process only on request (`arch_prctl`); threads inherit the permission.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn kernel_grants_tiles() -> bool {
    const ARCH_GET_XCOMP_PERM: libc::c_long = 0x1022;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    let mut granted = 0u64;
    // SAFETY: the request has no pointer argument; the query writes one u64 to the address given.
    unsafe {
        if libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0 {
            return false;
        }
        if libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut granted) != 0 {
            return false;
        }
    }
    granted & (1 << XFEATURE_XTILEDATA) != 0
}
