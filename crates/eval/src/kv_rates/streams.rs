//! Streams pages to a faster tier, and compares this with plain copies or reads of the same size and thread count.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use riffle_engine::EngineError;
use riffle_kv::{DEFAULT_SLOTS, KvCache, KvError};
use riffle_system::files::read_exact_at;

use super::{HEAD_DIM, KvRateOptions, LAYERS, StreamRate, far, filled, shape};
use crate::EvalError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    RamToDevice,
    /// The file is in the system's page cache.
    CachedDiskToRam,
    /// The file is not in the system's page cache.
    ColdDiskToRam,
}

impl Path {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RamToDevice => "ram to device",
            Self::CachedDiskToRam => "disk to ram",
            Self::ColdDiskToRam => "disk to ram, cold",
        }
    }
}

pub(super) const PATHS: [Path; 3] = [Path::RamToDevice, Path::CachedDiskToRam, Path::ColdDiskToRam];

/// Rounds that alternate streaming and plain work, so that other load on the machine affects both.
const ROUNDS: usize = 8;

/// Bytes of a plain read.
const REQUEST_BYTES: usize = 512 << 10;

pub(super) fn measure(options: &KvRateOptions, path: Path) -> Result<StreamRate, EvalError> {
    let shape = shape(options, options.format);
    let folder = (path != Path::RamToDevice).then(|| options.folder.clone());
    let mut cache = filled(&shape, far(options, &shape, folder, 0), options.tokens)?;
    let tiers = cache.usage().bytes_by_tier;
    let threads = cache.tiers().loaders;
    let bytes = match path {
        Path::RamToDevice => tiers.ram,
        _ => tiers.disk,
    };
    let plane = options.format.plane_bytes(options.page_tokens, HEAD_DIM);
    let plain = match path {
        Path::RamToDevice => Plain::Copy {
            source: vec![1; bytes as usize],
            plane,
        },
        _ => Plain::Read(PlainFile::create(
            options.folder.clone(),
            bytes as usize,
            2 * DEFAULT_SLOTS * plane,
        )?),
    };
    let (streaming_s, plain_s) = rounds(&mut cache, &plain, path == Path::ColdDiskToRam)?;
    let gigabytes = bytes as f64 / 1e9;
    Ok(StreamRate {
        path: path.name().to_owned(),
        threads,
        gigabytes_per_s: gigabytes / streaming_s,
        plain_gigabytes_per_s: gigabytes / plain_s,
        share: plain_s / streaming_s,
    })
}

/// Seconds to stream every layer, and seconds of the plain work. The fastest round counts; from a cold disk the
/// median counts, because caches below the file system are unknown.
fn rounds(cache: &mut KvCache, plain: &Plain, cold: bool) -> Result<(f64, f64), EvalError> {
    let threads = cache.tiers().loaders;
    let mut seconds = [Vec::new(), Vec::new()];
    // The first round only allocates memory and starts threads.
    for round in 0..=ROUNDS {
        if cold {
            cache.forget_cached_files().map_err(EngineError::from)?;
        }
        let start = Instant::now();
        for layer in 0..LAYERS {
            let streamed = cache.stream::<KvError>(layer, None, Some((layer + 1) % LAYERS), &mut |pages| {
                black_box(pages);
                Ok(())
            });
            streamed.map_err(EngineError::from)?;
        }
        let streamed_s = start.elapsed().as_secs_f64();
        // Pages loaded ahead for a next round must not speed up this one.
        cache.truncate(cache.tokens(0));
        if cold {
            plain.forget_cached()?;
        }
        let start = Instant::now();
        plain.run(threads)?;
        if round > 0 {
            seconds[0].push(streamed_s);
            seconds[1].push(start.elapsed().as_secs_f64());
        }
    }
    let [streaming_s, plain_s] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[if cold { ROUNDS / 2 } else { 0 }]
    });
    Ok((streaming_s, plain_s))
}

/// Plain copies or reads of the same bytes into a buffer of the ring's size.
enum Plain {
    /// Copies, a plane at a time.
    Copy {
        source: Vec<u8>,
        plane: usize,
    },
    Read(PlainFile),
}

impl Plain {
    fn run(&self, threads: usize) -> Result<(), EvalError> {
        let next = AtomicUsize::new(0);
        let results: Vec<Result<(), EvalError>> = thread::scope(|scope| {
            let work = || match self {
                Self::Copy { source, plane } => {
                    let mut target = vec![0u8; (2 * DEFAULT_SLOTS).div_ceil(threads) * plane];
                    let mut slots = (0..target.len() / plane).cycle();
                    while let Some(from) = source.chunks(*plane).nth(next.fetch_add(1, Ordering::Relaxed)) {
                        let slot = slots.next().expect("a ring has slots");
                        target[slot * plane..][..from.len()].copy_from_slice(from);
                    }
                    black_box(&target);
                    Ok(())
                }
                Self::Read(file) => file.read(&next, file.memory_bytes / threads),
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|result| result.expect("reading does not panic")).collect()
        });
        results.into_iter().collect()
    }

    fn forget_cached(&self) -> Result<(), EvalError> {
        match self {
            Self::Copy { .. } => Ok(()),
            Self::Read(file) => {
                riffle_kv::forget_cached(&file.file).map_err(|error| EvalError::file(&file.folder, &error))
            }
        }
    }
}

/// A file without a name.
struct PlainFile {
    file: File,
    folder: PathBuf,
    bytes: usize,
    /// Bytes of the common buffer of all threads.
    memory_bytes: usize,
}

impl PlainFile {
    fn create(folder: PathBuf, bytes: usize, memory_bytes: usize) -> Result<Self, EvalError> {
        let write = || -> std::io::Result<File> {
            let mut file = tempfile::tempfile_in(&folder)?;
            let block = vec![1u8; REQUEST_BYTES];
            for start in (0..bytes).step_by(block.len()) {
                file.write_all(&block[..block.len().min(bytes - start)])?;
            }
            Ok(file)
        };
        let file = write().map_err(|error| EvalError::file(&folder, &error))?;
        Ok(Self {
            file,
            folder,
            bytes,
            memory_bytes,
        })
    }

    /// Takes the next free request until none is left, and reads it into `memory_bytes` in turn.
    fn read(&self, next: &AtomicUsize, memory_bytes: usize) -> Result<(), EvalError> {
        let mut memory = vec![0u8; memory_bytes.max(REQUEST_BYTES)];
        let mut parts = (0..memory.len() / REQUEST_BYTES).cycle();
        loop {
            let start = next.fetch_add(REQUEST_BYTES, Ordering::Relaxed);
            if start >= self.bytes {
                return Ok(());
            }
            let count = REQUEST_BYTES.min(self.bytes - start);
            let part = parts.next().expect("there is room for a request");
            let target = &mut memory[part * REQUEST_BYTES..][..count];
            let read = read_exact_at(&self.file, target, start as u64);
            read.map_err(|error| EvalError::file(&self.folder, &error))?;
        }
    }
}
