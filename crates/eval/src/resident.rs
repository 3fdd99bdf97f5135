//! The memory this process has held, as the system counts it.

/// Begins a new peak, where the system can.
pub(crate) fn reset_peak() {
    // If the system refuses, `peak_bytes` still reports the peak of the whole process.
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes held at most since the peak began; `None` on systems that do not tell.
pub(crate) fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_holds_what_was_allocated_meanwhile() {
        reset_peak();
        let before = peak_bytes().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(peak_bytes().unwrap() >= before.max(held.len() as u64));
    }
}
