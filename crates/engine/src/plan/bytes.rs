//! The memory that the machine has.

/// Bytes this process may still use: what the system has available, within its control group's limit.
pub fn available_memory_bytes() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    // Without /proc nothing is known, and `sysinfo` must not be asked for limits: `memory_budget_bytes` says what may be used.
    if system.total_memory() == 0 {
        return 0;
    }
    match system.cgroup_limits() {
        Some(limits) if limits.total_memory > 0 => free.min(limits.free_memory),
        _ => free,
    }
}
