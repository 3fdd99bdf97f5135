//! Threads that read the matrices of experts and pack them.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use riffle_files::{FileError, FileParts, PartBuffer};
use riffle_linear::{Activations, PackedMatrix};

use super::cache::Shared;
use super::form::PartForm;
use crate::ModelError;
use crate::weights::first_not_finite;

/// Number of reading threads: each waits for the disk, then packs the matrix it read.
pub(super) const LOADERS: usize = 4;

/// A source of parts, such as a file.
pub(crate) trait ReadParts: Send + Sync {
    fn read<'b>(&self, offset: u64, bytes: usize, buffer: &'b mut PartBuffer) -> Result<&'b [u8], FileError>;
}

impl ReadParts for FileParts {
    fn read<'b>(&self, offset: u64, bytes: usize, buffer: &'b mut PartBuffer) -> Result<&'b [u8], FileError> {
        FileParts::read(self, offset, bytes, buffer)
    }
}

/// The locations of all loadable parts.
pub(super) struct Sources {
    pub(super) files: Vec<(PathBuf, Box<dyn ReadParts>)>,
    /// For each layer: gate, up and down.
    pub(super) layers: Vec<[Option<PartForm>; 3]>,
    pub(super) activations: Activations,
}

/// A matrix to load into a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) class: usize,
    pub(super) slot: usize,
    pub(super) layer: usize,
    pub(super) expert: usize,
    /// Gate, up or down.
    pub(super) part: usize,
    /// True until the weights have been checked.
    pub(super) is_unchecked: bool,
}

/// Starts the threads, which end when the cache is closed.
pub(super) fn start(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, ModelError> {
    let start = |number: usize| {
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name(format!("riffle-experts-{number}"));
        thread.spawn(move || work(&shared))
    };
    let threads: std::io::Result<Vec<_>> = (0..LOADERS).map(start).collect();
    threads.map_err(|source| ModelError::Thread { source })
}

fn work(shared: &Shared) {
    // Packing uses the calling thread's pool. A pool of one thread keeps the computing threads free.
    let own = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread();
    let _own = own.build();
    let mut buffer = PartBuffer::default();
    while let Some((load, memory)) = shared.next() {
        let (matrix, failure) = shared.sources.load(&load, memory, &mut buffer);
        shared.loaded(&load, matrix, failure);
    }
}

impl Sources {
    /// Reads and packs a matrix, into `memory` if given. After a failure the memory is returned unchanged.
    fn load(
        &self,
        load: &Load,
        mut memory: Option<PackedMatrix>,
        buffer: &mut PartBuffer,
    ) -> (Option<PackedMatrix>, Option<ModelError>) {
        let Some(form) = &self.layers[load.layer][load.part] else {
            unreachable!("parts that a form has are asked for")
        };
        let failure = self.fill(load, form, &mut memory, buffer).err();
        (memory, failure)
    }

    fn fill(
        &self,
        load: &Load,
        form: &PartForm,
        memory: &mut Option<PackedMatrix>,
        buffer: &mut PartBuffer,
    ) -> Result<(), ModelError> {
        let place = form.places[load.expert];
        let (path, file) = &self.files[place.file];
        let bytes = file.read(place.offset, form.file_bytes(), buffer);
        let bytes = bytes.map_err(|error| ModelError::streamed(path, form.tensor(load.expert), error))?;
        if load.is_unchecked
            && let Some((element, value)) = first_not_finite(form.format, bytes)
        {
            return Err(ModelError::NotFinite {
                tensor: form.tensor(load.expert),
                element,
                value,
            });
        }
        let unpacked = |source| ModelError::Pack {
            tensor: form.tensor(load.expert),
            source,
        };
        match memory {
            Some(matrix) => matrix.repack(bytes, place.factor).map_err(unpacked),
            None => {
                let matrix = PackedMatrix::pack(form.format, form.rows, form.columns, bytes).map_err(unpacked)?;
                let matrix = matrix.with_activations(self.activations);
                *memory = Some(matrix.with_factor(place.factor));
                Ok(())
            }
        }
    }
}
