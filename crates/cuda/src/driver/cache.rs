use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use twox_hash::XxHash3_128;

use crate::CudaError;

/// A folder of compiled kernels. The file name is a hash of the source and all options.
#[derive(Debug, Clone)]
pub struct KernelCache {
    folder: PathBuf,
}

impl KernelCache {
    /// A cache in this folder, which the first compilation creates.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self { folder }
    }

    /// `RIFFLE_KERNEL_CACHE`, or `riffle/kernels` below `XDG_CACHE_HOME` or `~/.cache`, or below the system's
    /// folder for temporary files.
    pub fn of_user() -> Self {
        if let Some(folder) = std::env::var_os("RIFFLE_KERNEL_CACHE") {
            return Self::new(folder);
        }
        let base = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        Self::new(
            base.or_else(home)
                .unwrap_or_else(std::env::temp_dir)
                .join("riffle/kernels"),
        )
    }

    /// The file made from `ingredients`. If it is missing, `build` writes it to a temporary path. A rename puts it in
    /// place, so other processes see it whole or not at all.
    pub(crate) fn find_or_build(
        &self,
        ingredients: &[&str],
        extension: &str,
        build: impl FnOnce(&Path) -> Result<(), CudaError>,
    ) -> Result<PathBuf, CudaError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let mut bytes = Vec::new();
        for ingredient in ingredients {
            bytes.extend_from_slice(&(ingredient.len() as u64).to_le_bytes());
            bytes.extend_from_slice(ingredient.as_bytes());
        }
        let hash = XxHash3_128::oneshot(&bytes);
        let path = self.folder.join(format!("{hash:032x}.{extension}"));
        if path.is_file() {
            return Ok(path);
        }
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| CudaError::Cache {
                path,
                message: error.to_string(),
            }
        };
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = self
            .folder
            .join(format!("{hash:032x}.{}.{number}.{extension}", std::process::id()));
        let built = build(&new).and_then(|()| fs::rename(&new, &path).map_err(failed(&path)));
        if built.is_err() {
            fs::remove_file(&new).ok();
        }
        built.map(|()| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_built_is_found_and_what_failed_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("riffle-kernel-cache-{}", std::process::id()));
        let cache = KernelCache::new(&folder);
        let built = cache.find_or_build(&["a", "b"], "bin", |path| {
            fs::write(path, "one").unwrap();
            Ok(())
        });
        let again = cache.find_or_build(&["a", "b"], "bin", |_| panic!("it is there"));
        assert_eq!(built, again);
        assert_eq!(fs::read(built.unwrap()).unwrap(), b"one");
        let error = CudaError::NoCompiler { reason: String::new() };
        let failed = cache.find_or_build(&["ab"], "bin", |path| {
            fs::write(path, "half").unwrap();
            Err(error.clone())
        });
        assert_eq!(failed, Err(error));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
