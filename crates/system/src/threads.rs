//! Threads that work beside others.

use crate::platform;

/// Lets other threads run before the calling one, from now on. It still runs on idle processors. Only Linux has such
/// a setting for one thread; elsewhere nothing changes.
pub fn give_way() {
    platform::give_way();
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn a_thread_gives_way_alone() {
        let before = getpriority_process(None).unwrap();
        let behind = std::thread::spawn(|| {
            super::give_way();
            getpriority_process(None).unwrap()
        });
        assert_eq!(behind.join().unwrap(), 19);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
