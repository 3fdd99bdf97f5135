//! Measures the rate of reading experts from the files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use riffle_files::{FileParts, PartBuffer};

use super::form::ExpertForm;
use super::loader::LOADERS;
use crate::ModelError;

/// Approximate time of a measurement.
const MEASURED: Duration = Duration::from_millis(400);
/// Distance between the measured experts, a prime number: no two are neighbours in the file.
const STRIDE: usize = 7919;

/// Bytes per second, with as many threads as the cache has loaders.
pub(crate) fn read_rate(forms: &[ExpertForm], files: &[(PathBuf, FileParts)]) -> Result<f64, ModelError> {
    let parts: Vec<_> = forms.iter().flat_map(|form| form.parts.iter().flatten()).collect();
    let (next, read, began) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
    let measure = || {
        let mut buffer = PartBuffer::default();
        while began.elapsed() < MEASURED {
            let at = next.fetch_add(1, Ordering::Relaxed) * STRIDE;
            let part = parts[at % parts.len()];
            let expert = at / parts.len() % part.places.len();
            let place = part.places[expert];
            let (path, file) = &files[place.file];
            let bytes = file.read(place.offset, part.file_bytes(), &mut buffer);
            let bytes = bytes.map_err(|error| ModelError::streamed(path, part.tensor(expert), error))?;
            read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..LOADERS).map(|_| scope.spawn(measure)).collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
        ended.collect::<Result<Vec<()>, ModelError>>()
    })?;
    Ok(read.into_inner() as f64 / began.elapsed().as_secs_f64())
}
