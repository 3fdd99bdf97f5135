//! Short lists for kernels of one stream, set again before each.

use bytemuck::Pod;

use crate::{CudaError, DeviceBuffer, Event, Gpu, PinnedBuffer, Region, Stream};

/// Device memory of a list, and its pinned staging memory; both grow on demand.
pub(crate) struct DeviceList {
    gpu: Gpu,
    device: DeviceBuffer,
    host: PinnedBuffer,
    uploaded: Event,
    is_used: bool,
}

impl DeviceList {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            device: gpu.allocate(0)?,
            host: gpu.allocate_host(0)?,
            uploaded: gpu.event()?,
            gpu: gpu.clone(),
            is_used: false,
        })
    }

    /// Queues the upload of the list. Kernels queued on `stream` before still read the previous list, and later
    /// kernels read this one.
    pub(crate) fn set<T: Pod>(&mut self, stream: &Stream, elements: &[T]) -> Result<Region<'_>, CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        if self.is_used {
            self.uploaded.synchronize()?;
        }
        if self.device.bytes() < bytes.len() {
            let capacity = bytes.len().next_power_of_two();
            self.host = self.gpu.allocate_host(capacity)?;
            self.device = self.gpu.allocate(capacity)?;
        }
        self.host.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let to = self.device.region(0..bytes.len());
        stream.to_device(to, &self.host, 0)?;
        stream.record(&self.uploaded)?;
        self.is_used = true;
        Ok(to)
    }
}
