//! The proofs of x86's instruction sets: AMX implies AVX-512, AVX-512 implies AVX2.

use crate::isa::Isa;

pub use Amx as TilesProof;

impl Isa {
    /// Proof for AVX2 kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn avx2(self) -> Option<Avx2> {
        if self >= Isa::Avx2 { Avx2::detect() } else { None }
    }

    /// Proof for AVX-512 kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn avx512(self) -> Option<Avx512> {
        if self >= Isa::Avx512 { Avx512::detect() } else { None }
    }
}

/// Proof that this CPU has AVX2, FMA, F16C and POPCNT.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// `target_feature`: `avx2,fma,f16c,popcnt`.
    pub fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt");
        found.then_some(Avx2(()))
    }
}

/// Proof that this CPU has AVX-512 F, BW, VL, DQ and VNNI (and AVX2 with FMA).
#[derive(Clone, Copy, Debug)]
pub struct Avx512(Avx2);

impl Avx512 {
    /// The proof of its base.
    pub fn avx2(self) -> Avx2 {
        self.0
    }

    /// `target_feature`: `avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni`.
    pub fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| found).map(Avx512)
    }
}

/// Proof that this CPU has AVX-512 BF16 in addition to [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(Avx512);

impl Avx512Bf16 {
    /// The proof of its base.
    pub fn avx512(self) -> Avx512 {
        self.0
    }

    /// `target_feature`: those of [`Avx512::detect`] and `avx512bf16`.
    pub fn detect() -> Option<Avx512Bf16> {
        let found = is_x86_feature_detected!("avx512bf16");
        Avx512::detect().filter(|_| found).map(Avx512Bf16)
    }
}

/// Proof that this process may execute tile instructions (TILE, INT8, BF16), in addition to [`Avx512`]. The CPU must
/// have them and the operating system must permit them; the process requests the permission once.
#[derive(Clone, Copy, Debug)]
pub struct Amx(Avx512);

impl Amx {
    /// The proof of its base: tile kernels unpack and rescale with vectors.
    pub fn avx512(self) -> Avx512 {
        self.0
    }

    /// Checks CPUID, XCR0 and the kernel's permission if the CPU has AVX-512; the result is cached for the process.
    pub fn detect() -> Option<Amx> {
        let vectors = Avx512::detect()?;
        #[cfg(target_os = "linux")]
        let found = {
            static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
            *FOUND.get_or_init(|| cpu_has_amx() && kernel_grants_tiles())
        };
        #[cfg(not(target_os = "linux"))]
        let found = false;
        found.then_some(Amx(vectors))
    }

    /// A proof of tiles without detection, for tests that run the tile kernels under an emulator. The vector
    /// instructions that these kernels also use are real.
    ///
    /// # Safety
    /// Tile instructions must work in this process: natively, or through a SIGILL handler that executes them.
    #[doc(hidden)]
    pub unsafe fn assume(vectors: Avx512) -> Amx {
        Amx(vectors)
    }
}

/// CPUID leaf 7 reports TILE, INT8 and BF16, and XCR0 that the operating system saves tile state.
#[cfg(target_os = "linux")]
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

/// Linux permits tile state to a process only on request (`arch_prctl`); threads inherit the permission.
#[cfg(target_os = "linux")]
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
