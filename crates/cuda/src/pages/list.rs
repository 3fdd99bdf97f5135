//! Short lists that kernels of one stream read, set anew before each.

use bytemuck::Pod;

use crate::{CudaError, DeviceBuffer, Event, Gpu, PinnedBuffer, Region, Stream};

/// Device memory for a list, and the pinned memory it comes from; both grow as needed.
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

    /// Queues the list's way to the device: kernels queued on `stream` before still read the one before, those after it
    /// read this.
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
