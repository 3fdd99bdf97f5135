//! The processor's vendor, which decides the prefetch distance and cache level for weights.

use core::arch::x86_64::__cpuid;
use std::sync::OnceLock;

/// True for AMD processors. Zen 5 reads K-quants at half to three quarters of the memory's rate; a prefetch of each
/// block into the first-level cache avoids this. An Intel Xeon with AMX reads some formats at two thirds of the
/// memory's rate; a prefetch into the second-level cache avoids this.
pub(super) fn is_amd() -> bool {
    static IS_AMD: OnceLock<bool> = OnceLock::new();
    *IS_AMD.get_or_init(|| {
        #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
        // SAFETY: every processor of 64 bits has the instruction.
        let vendor = unsafe { __cpuid(0) };
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    })
}
