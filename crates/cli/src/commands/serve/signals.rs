//! Signals to a server: an interrupt ends it, and a hang-up reloads its keys.

use crate::failure::Failure;

/// Calls `stop` at the first interrupt (Ctrl-C or SIGTERM), ends the process at the second, and calls `hang_up` at each
/// SIGHUP.
#[cfg(unix)]
pub(super) fn handle(stop: impl Fn() + Send + 'static, hang_up: impl Fn() + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let failed = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let work = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => hang_up(),
                _ if is_ending => std::process::exit(Failure::INTERRUPTED.into()),
                _ => {
                    is_ending = true;
                    stop();
                }
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("riffle-signals".to_owned())
        .spawn(work);
    thread.map(drop).map_err(failed)
}

/// Systems without SIGHUP have only signals that stop the server.
#[cfg(not(unix))]
pub(super) fn handle(stop: impl Fn() + Send + 'static, _: impl Fn() + Send + 'static) -> Result<(), Failure> {
    crate::interrupt::on_interrupt(stop)
}
