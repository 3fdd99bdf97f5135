//! Where a model computes: on the CPU, or on a device that holds its weights.

use std::ops::Range;
use std::sync::Arc;

use riffle_device::{ComputeDevice, DeviceForward, DeviceModel, DeviceQueue, HostRows};
use riffle_model::{AttentionShape, Decoder, Forward, HostForward};

use crate::EngineError;
use crate::attention::layer_rows::NewKeys;
use crate::attention::rotation::{Rotation, rotate, rotated_widths};
use crate::attention::tiles::cached_shape;

pub(crate) enum Compute {
    Host(Arc<Decoder>),
    Device(DeviceCompute),
}

/// A model on a device, and the queue of its work.
pub(crate) struct DeviceCompute {
    model: Box<dyn DeviceModel>,
    pub(crate) queue: Arc<dyn DeviceQueue>,
}

/// Batches on their way through the model where it computes.
pub(crate) enum ModelForward {
    Host(Box<HostForward>),
    Device(Box<dyn DeviceForward>),
}

/// What a layer of a batch attends with, rotated as caches hold it, and room for the result.
pub(crate) struct ProjectedLayer<'a> {
    // [rows, heads, key_width]
    pub(crate) queries: &'a [f32],
    pub(crate) new_keys: NewKeys<'a>,
    /// The attention result where it comes to main memory, `[rows, heads, value_width]`.
    pub(crate) output: &'a mut [f32],
}

impl Compute {
    /// Brings the weights to where the model is to compute.
    pub(crate) fn new(decoder: Decoder, device: Option<&dyn ComputeDevice>) -> Result<Self, EngineError> {
        Ok(match device {
            None => Self::Host(Arc::new(decoder)),
            Some(device) => {
                let queue = device.queue()?;
                let model = Arc::clone(&queue).upload(decoder)?;
                Self::Device(DeviceCompute { model, queue })
            }
        })
    }

    /// The model in main memory; `None` where a device computes.
    pub(crate) fn host(&self) -> Option<&Arc<Decoder>> {
        match self {
            Self::Host(model) => Some(model),
            Self::Device(_) => None,
        }
    }

    /// Memory for batches of up to `batch_tokens` tokens.
    pub(crate) fn forward(&self, batch_tokens: usize) -> Result<ModelForward, EngineError> {
        Ok(match self {
            Self::Host(model) => {
                let forward = HostForward::new(model, batch_tokens);
                ModelForward::Host(Box::new(forward))
            }
            Self::Device(device) => ModelForward::Device(device.model.forward(batch_tokens)?),
        })
    }
}

impl ModelForward {
    /// The longest batch there is memory for, in rows.
    pub(crate) fn batch_tokens(&self) -> usize {
        match self {
            Self::Host(forward) => forward.batch_tokens(),
            Self::Device(forward) => forward.batch_tokens(),
        }
    }

    /// For work that is the same wherever the model computes.
    pub(crate) fn as_dyn(&mut self) -> &mut dyn Forward {
        match self {
            Self::Host(forward) => &mut **forward,
            Self::Device(forward) => &mut **forward,
        }
    }

    /// A batch in main memory; `None` where a device computes.
    pub(crate) fn host(&mut self) -> Option<&mut HostForward> {
        match self {
            Self::Host(forward) => Some(forward),
            Self::Device(_) => None,
        }
    }

    /// Projects rows of a batch in a layer and rotates them as caches hold them; false for a recurrent layer, which has nothing to
    /// attend to.
    pub(crate) fn project(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        shape: &AttentionShape,
        rotation: Rotation,
    ) -> Result<bool, EngineError> {
        match self {
            Self::Host(forward) => {
                if !forward.project(layer, rows.clone())? {
                    return Ok(false);
                }
                let Some(projected) = forward.projected() else {
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
            Self::Device(forward) => {
                if !forward.project_rows(layer, rows.clone())? {
                    return Ok(false);
                }
                if rotation.keys {
                    forward.rows().rotate_queries(rows.clone())?;
                }
                forward.bring_queries(rows)?;
                Ok(true)
            }
        }
    }

    /// What the layer under way attends with, of all rows projected so far; `None` for a recurrent layer.
    pub(crate) fn projected(&mut self) -> Option<ProjectedLayer<'_>> {
        match self {
            Self::Host(forward) => {
                let projected = forward.projected()?;
                Some(ProjectedLayer {
                    queries: projected.queries,
                    new_keys: NewKeys::Host {
                        keys: projected.keys,
                        values: projected.values,
                    },
                    output: projected.attended,
                })
            }
            Self::Device(forward) => {
                let HostRows {
                    queries,
                    attended,
                    rows,
                } = forward.host_rows();
                Some(ProjectedLayer {
                    queries,
                    new_keys: NewKeys::Device(rows),
                    output: attended,
                })
            }
        }
    }

    /// Brings rows of [`ProjectedLayer::output`] to where the model goes on from.
    pub(crate) fn take_output(&mut self, rows: Range<usize>) -> Result<(), EngineError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(forward) => Ok(forward.send_attended(rows)?),
        }
    }
}
