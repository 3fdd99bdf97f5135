//! Kernels as libraries: the same CUDA C++, compiled by g++.

use std::ffi::{c_char, c_void};
use std::process::Command;

use libloading::Library;

use crate::CudaError;
use crate::driver::{KernelCache, ModuleSource};

const HEAD: &str = "#define RIFFLE_EMULATED 1";
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-w",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fcf-protection=none",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    // Faster access to thread-local storage; other processors have no such option.
    #[cfg(target_arch = "x86_64")]
    "-mtls-dialect=gnu2",
];

/// True if there is a compiler for emulated kernels (`CXX`, or `g++`).
pub fn has_compiler() -> bool {
    Command::new(compiler())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

pub(super) fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

type LaunchFunction = unsafe extern "C" fn(*const LaunchData, *const *const c_void) -> *const c_char;
type ParametersFunction = unsafe extern "C" fn() -> *const u32;

#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) launch: LaunchFunction,
    pub(super) parameter_bytes: Vec<usize>,
}

/// `emulated::Launch`.
#[repr(C)]
pub(super) struct LaunchData {
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) unused: u32,
    pub(super) seed: u64,
}

/// The library of a module, compiled on first use.
pub(super) fn load(source: &ModuleSource, cache: &KernelCache) -> Result<Library, CudaError> {
    let text = source.text(HEAD);
    let compiler = compiler();
    let ingredients = [&text, &FLAGS.join(" "), compiler.as_str()];
    let path = cache.find_or_build(&ingredients, "so", |target| {
        let input = target.with_extension("cpp");
        let failed = |error: std::io::Error| CudaError::Cache {
            path: input.display().to_string(),
            message: error.to_string(),
        };
        std::fs::write(&input, &text).map_err(failed)?;
        let output = Command::new(&compiler)
            .args(FLAGS)
            .arg("-o")
            .arg(target)
            .arg(&input)
            .output();
        std::fs::remove_file(&input).ok();
        let output = output.map_err(failed)?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            let line = log.lines().find(|line| line.contains("error")).or(log.lines().next());
            return Err(CudaError::Compile {
                kernel: source.name(),
                line: line.unwrap_or("the compiler says nothing").to_owned(),
            });
        }
        Ok(())
    })?;
    // SAFETY: the library was compiled from this crate's sources and runs nothing when it is loaded.
    unsafe { Library::new(&path) }.map_err(|error| CudaError::driver("loading a module", error))
}

impl Function {
    /// A kernel of a library that stays loaded.
    pub(super) fn find(library: &Library, name: &'static str) -> Result<Function, CudaError> {
        let missing = |error: libloading::Error| CudaError::driver(name, error);
        // SAFETY: `EXPORT` defines both symbols with these types; the library stays loaded.
        let (launch, parameters) = unsafe {
            let launch = *library
                .get::<LaunchFunction>(format!("riffle_launch_{name}"))
                .map_err(missing)?;
            let parameters = library
                .get::<ParametersFunction>(format!("riffle_parameters_{name}"))
                .map_err(missing)?;
            (launch, parameters())
        };
        let mut parameter_bytes = Vec::new();
        // SAFETY: the list ends with a zero.
        unsafe {
            while *parameters.add(parameter_bytes.len()) != 0 {
                parameter_bytes.push(*parameters.add(parameter_bytes.len()) as usize);
            }
        }
        Ok(Function {
            name,
            launch,
            parameter_bytes,
        })
    }
}
