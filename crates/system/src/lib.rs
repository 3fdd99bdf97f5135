//! Operating-system functions that the standard library lacks. One file per system.
//!
//! ```
//! let folder = std::env::temp_dir();
//! assert!(riffle_system::files::free_bytes(&folder)? > 0);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod arithmetic;
mod direct;
pub mod files;
pub mod folders;
pub mod memory;
#[cfg(feature = "signals")]
pub mod signals;
pub mod terminal;
pub mod threads;

#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "linux.rs"]
mod platform;
#[cfg(target_vendor = "apple")]
#[path = "macos.rs"]
mod platform;
#[cfg(windows)]
#[path = "windows.rs"]
mod platform;
#[cfg(unix)]
mod unix;
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
compile_error!("riffle-system knows Linux, macOS and Windows: write a file for this system beside src/linux.rs");

pub use direct::DirectFile;
