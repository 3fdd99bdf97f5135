use std::error::Error;

/// Error of a device; its message names the failure and the remedy. [`downcast_ref`](Self::downcast_ref) gives the
/// device's own error.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceError(Box<dyn Error + Send + Sync>);

impl DeviceError {
    /// An error of a device, or a message.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// The device's own error, if it is of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}
