//! A model on a device, which caches pages and attends there.

use std::ops::Range;
use std::sync::Arc;

use riffle_device::{ComputeDevice, DeviceForward, DeviceModel, DeviceQueue, HostRows, RoomOptions};
use riffle_model::{AttentionShape, Decoder, Forward, HostForward};

use super::{Compute, ModelForward, ProjectedLayer};
use crate::EngineError;
use crate::attention::{DevicePages, NewKeys, Reader, Rotation, SharedRoom};

pub(super) struct DeviceCompute {
    device: Arc<dyn ComputeDevice>,
    model: Box<dyn DeviceModel>,
    queue: Arc<dyn DeviceQueue>,
}

impl DeviceCompute {
    pub(super) fn new(decoder: Decoder, device: &Arc<dyn ComputeDevice>) -> Result<Self, EngineError> {
        let queue = device.queue()?;
        Ok(Self {
            model: Arc::clone(&queue).upload(decoder)?,
            queue,
            device: Arc::clone(device),
        })
    }
}

impl Compute for DeviceCompute {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn host(&self) -> Option<&Arc<Decoder>> {
        None
    }

    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn ModelForward>, EngineError> {
        Ok(Box::new(self.model.forward(batch_tokens)?))
    }

    fn reader(&self, shared: &SharedRoom, room: Option<RoomOptions>) -> Result<Box<dyn Reader>, EngineError> {
        let room = room.expect("the plan of a device has a room");
        Ok(Box::new(DevicePages::shared(shared, &self.queue, room)?))
    }

    fn rows_alike(&self) -> usize {
        self.device.few_rows()
    }
}

impl ModelForward for Box<dyn DeviceForward> {
    fn as_dyn(&mut self) -> &mut dyn Forward {
        &mut **self
    }

    fn host(&mut self) -> Option<&mut HostForward> {
        None
    }

    fn project(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        _: &AttentionShape,
        rotation: Rotation,
    ) -> Result<bool, EngineError> {
        if !self.project_rows(layer, rows.clone())? {
            return Ok(false);
        }
        if rotation.keys {
            self.rows().rotate_queries(rows.clone())?;
        }
        self.bring_queries(rows)?;
        Ok(true)
    }

    fn projected(&mut self) -> Option<ProjectedLayer<'_>> {
        let HostRows {
            queries,
            attended,
            rows,
        } = self.host_rows();
        Some(ProjectedLayer {
            queries,
            new_keys: NewKeys::Device(rows),
            index: None,
            output: attended,
        })
    }

    fn take_output(&mut self, rows: Range<usize>) -> Result<(), EngineError> {
        Ok(self.send_attended(rows)?)
    }
}
