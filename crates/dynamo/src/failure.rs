//! Errors with Dynamo's categories.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};

/// A refused request.
pub(crate) fn refused(message: impl Into<String>) -> DynamoError {
    error(ErrorType::Backend(BackendError::InvalidArgument), message)
}

/// A worker that cannot start, or has ended.
pub(crate) fn not_running(message: impl Into<String>) -> DynamoError {
    error(ErrorType::Backend(BackendError::EngineShutdown), message)
}

/// A request that Riffle refuses or cannot answer. If this worker is full or ending, Dynamo may send the request to
/// another.
pub(crate) fn of_request(failure: &riffle_server::Failure) -> DynamoError {
    let kind = match failure.status() {
        429 => ErrorType::ResourceExhausted,
        503 => ErrorType::Backend(BackendError::EngineShutdown),
        500..=599 => ErrorType::Backend(BackendError::Unknown),
        _ => ErrorType::Backend(BackendError::InvalidArgument),
    };
    error(kind, failure.to_string())
}

fn error(kind: ErrorType, message: impl Into<String>) -> DynamoError {
    let message = message.into();
    // Clients see only the public message; nothing here is secret.
    let error = DynamoError::builder().error_type(kind).public_message(message.clone());
    error.message(message).build()
}
