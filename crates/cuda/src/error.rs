use riffle_device::DeviceError;

/// Errors of a GPU, or of the search for one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is missing, or this build has no driver.
    #[error("{reason}; use --device cpu")]
    NoDriver {
        /// The reason.
        reason: String,
    },
    /// There are fewer devices.
    #[error(
        "there is no CUDA device {ordinal}: the driver finds {found}; use --device cuda:N with N below that, or --device cpu"
    )]
    NoDevice {
        /// The requested device.
        ordinal: usize,
        /// Number of devices.
        found: usize,
    },
    /// The device is too old.
    #[error("{name} has compute capability {}.{}; at least 8.0 is needed, use --device cpu", found.0, found.1)]
    Capability {
        /// The device.
        name: String,
        /// Compute capability of the device.
        found: (u32, u32),
    },
    /// An allocation failed.
    #[error(
        "{place} memory is short: {needed_bytes} bytes asked for, {free_bytes} free; lower the budget or the context"
    )]
    OutOfMemory {
        /// `device` or `pinned host`.
        place: &'static str,
        /// Requested bytes.
        needed_bytes: usize,
        /// Bytes free at that moment.
        free_bytes: usize,
    },
    /// A compiler that kernels need at first use is missing.
    #[error("kernels cannot be compiled: {reason}")]
    NoCompiler {
        /// The missing part, and its remedy.
        reason: String,
    },
    /// A kernel does not compile.
    #[error("kernel {kernel} does not compile: {line}")]
    Compile {
        /// The module.
        kernel: String,
        /// First line of the compiler's log.
        line: String,
    },
    /// The device failed during a run; nothing on it can be read any more.
    #[error("the GPU was lost while it did {what}; what is in main memory is intact, start again")]
    DeviceLost {
        /// The call that noticed the loss.
        what: String,
    },
    /// The driver refused a call.
    #[error("CUDA refused {what}: {message}")]
    Driver {
        /// The call.
        what: String,
        /// The driver's message.
        message: String,
    },
    /// The cache of compiled kernels is not writable.
    #[error(
        "compiled kernels cannot be kept in {path}: {message}; set RIFFLE_KERNEL_CACHE to a folder that can be written"
    )]
    Cache {
        /// The folder or file.
        path: String,
        /// The system's message.
        message: String,
    },
    /// The memory for pages is smaller than a call needs.
    #[error(
        "the device has {budget_bytes} bytes for KV pages and {least_bytes} are needed: use --kv-device-budget {least_bytes}, a smaller --kv-slots, or --device cpu"
    )]
    PageBudget {
        /// Budget in bytes.
        budget_bytes: u64,
        /// Smallest sufficient budget in bytes.
        least_bytes: u64,
    },
    /// Two shapes that must agree differ.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// The size that differs.
        what: &'static str,
        /// Expected size.
        expected: usize,
        /// Size found.
        found: usize,
    },
    /// Device memory is shorter than its shape.
    #[error("{what} holds {found_bytes} bytes, {needed_bytes} are needed")]
    Short {
        /// The operand.
        what: &'static str,
        /// Bytes of the shape.
        needed_bytes: usize,
        /// Bytes of the memory.
        found_bytes: usize,
    },
    /// An environment variable has an unknown value, or one that this device does not support.
    #[error("{variable}={value}: {requirement}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// Allowed values.
        requirement: &'static str,
    },
    /// Two kernels that must agree differ.
    #[error("element {at} of a first case is {found}, expected {expected}")]
    Disagreement {
        /// Index of the element.
        at: usize,
        /// Value found.
        found: f32,
        /// Expected value.
        expected: f32,
    },
    /// The rows are of another kind of device.
    #[error("these rows lie on another device: make them on the queue of this one")]
    OtherDevice,
    /// A part of a model without a kernel.
    #[error("{part} is not computed on the GPU; use --device cpu")]
    Part {
        /// The part.
        part: &'static str,
    },
    /// A size without a kernel.
    #[error("{what} {value} is not supported on the GPU: it must be {requirement}")]
    Unsupported {
        /// Name of the size.
        what: &'static str,
        /// Value of the size.
        value: usize,
        /// Supported sizes.
        requirement: &'static str,
    },
}

impl CudaError {
    pub(crate) fn driver(what: &str, message: impl ToString) -> Self {
        Self::Driver {
            what: what.to_owned(),
            message: message.to_string(),
        }
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        Self::new(error)
    }
}
