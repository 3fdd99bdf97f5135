//! A model in main memory, computed by the CPU.

use std::ops::Range;
use std::sync::Arc;

use riffle_device::RoomOptions;
use riffle_model::{AttentionShape, Decoder, Forward, HostForward};

use super::{Compute, ModelForward, ProjectedLayer};
use crate::EngineError;
use crate::attention::{HostReader, NewKeys, Reader, Rotation, SharedRoom, cached_shape, rotate, rotated_widths};

pub(super) struct HostCompute(pub(super) Arc<Decoder>);

impl Compute for HostCompute {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn host(&self) -> Option<&Arc<Decoder>> {
        Some(&self.0)
    }

    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn ModelForward>, EngineError> {
        Ok(Box::new(HostForward::new(&self.0, batch_tokens)))
    }

    fn reader(&self, _: &SharedRoom, _: Option<RoomOptions>) -> Result<Box<dyn Reader>, EngineError> {
        Ok(Box::new(HostReader))
    }

    fn rows_alike(&self) -> usize {
        usize::MAX
    }
}

impl ModelForward for HostForward {
    fn as_dyn(&mut self) -> &mut dyn Forward {
        self
    }

    fn host(&mut self) -> Option<&mut HostForward> {
        Some(self)
    }

    fn project(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        shape: &AttentionShape,
        rotation: Rotation,
    ) -> Result<bool, EngineError> {
        if !Forward::project(self, layer, rows.clone())? {
            return Ok(false);
        }
        let Some(projected) = Forward::projected(self) else {
            return Ok(false);
        };
        let query_width = projected.queries.len() / rows.end;
        let new = |width: usize| rows.start * width..rows.end * width;
        let [key_width, value_width] = rotated_widths(&cached_shape(shape));
        if rotation.keys {
            rotate(&mut projected.queries[rows.start * query_width..], key_width);
            rotate(&mut projected.keys[new(shape.keys_width())], key_width);
        }
        if rotation.values {
            rotate(&mut projected.values[new(shape.values_width())], value_width);
        }
        Ok(true)
    }

    fn projected(&mut self) -> Option<ProjectedLayer<'_>> {
        let projected = Forward::projected(self)?;
        Some(ProjectedLayer {
            queries: projected.queries,
            new_keys: NewKeys::Host {
                keys: projected.keys,
                values: projected.values,
            },
            index: projected.index,
            output: projected.attended,
        })
    }

    fn take_output(&mut self, _: Range<usize>) -> Result<(), EngineError> {
        Ok(())
    }
}
