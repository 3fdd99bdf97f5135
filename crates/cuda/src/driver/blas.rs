//! cuBLASLt, found at run time, for products of 16-bit weights and activations with sums in f32.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::Product16;
use crate::CudaError;

/// A handle of the library, and its algorithm for each shape; `None` for unsupported shapes.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    algorithms: Mutex<HashMap<Product16, Option<sys::cublasLtMatmulAlgo_t>>>,
}

// SAFETY: a handle may be used from any thread, also from several at once.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// Descriptors of a product for the library: `output[rows, outputs] = input[rows, inputs] · weights[outputs, inputs]ᵀ`.
/// The library takes matrices column by column, so rows here are its columns.
struct Description {
    product: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    input: sys::cublasLtMatrixLayout_t,
    output: sys::cublasLtMatrixLayout_t,
}

impl Blas {
    /// Opens the library. The error gives the reason if it is missing.
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: the call only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt is not installed".to_owned());
        }
        let handle = result::create_handle().map_err(|error| format!("cuBLASLt does not start: {error}"))?;
        Ok(Self {
            handle,
            algorithms: Mutex::default(),
        })
    }

    /// Queues a product; false if the library has no algorithm for the shape.
    ///
    /// # Safety
    /// The regions hold the product's matrices until it has run, the stream is live in the current context.
    pub(super) unsafe fn multiply(
        &self,
        stream: u64,
        product: &Product16,
        output: u64,
        weights: u64,
        input: u64,
    ) -> Result<bool, CudaError> {
        let failed = |error: CublasError| CudaError::driver("cuBLASLt", error);
        let told = Description::new(product).map_err(failed)?;
        let Some(algorithm) = self.algorithm(product, &told).map_err(failed)? else {
            return Ok(false);
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let number = |value: &f32| -> *const c_void { std::ptr::from_ref(value).cast() };
        // SAFETY: the caller answers for the regions and the stream; no workspace was asked for. The output
        // also stands for C: a factor of zero leaves C unread.
        let queued = unsafe {
            result::matmul(
                self.handle,
                told.product,
                number(&one),
                number(&zero),
                weights as *const c_void,
                told.weights,
                input as *const c_void,
                told.input,
                output as *const c_void,
                told.output,
                output as *mut c_void,
                told.output,
                &algorithm,
                std::ptr::null_mut(),
                0,
                stream as sys::cudaStream_t,
            )
        };
        queued.map(|()| true).map_err(failed)
    }

    fn algorithm(
        &self,
        product: &Product16,
        told: &Description,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CublasError> {
        let mut known = self.algorithms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(algorithm) = known.get(product) {
            return Ok(*algorithm);
        }
        let preference = result::create_matmul_pref()?;
        let (output, product_told) = (told.output, told.product);
        // SAFETY: every description is live; the preference is destroyed after its only use.
        let found = unsafe {
            let found = result::get_matmul_algo_heuristic(
                self.handle,
                product_told,
                told.weights,
                told.input,
                output,
                output,
                preference,
            );
            result::destroy_matmul_pref(preference).ok();
            found
        };
        let algorithm = match found {
            Ok(found) => Some(found.algo),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => None,
            Err(error) => return Err(error),
        };
        known.insert(*product, algorithm);
        Ok(algorithm)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle is live and destroyed here alone.
        unsafe { result::destroy_handle(self.handle) }.ok();
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blas")
    }
}

impl Description {
    fn new(product: &Product16) -> Result<Self, CublasError> {
        use sys::cudaDataType as Type;
        let kind = if product.is_bf16 {
            Type::CUDA_R_16BF
        } else {
            Type::CUDA_R_16F
        };
        let (rows, outputs, inputs) = (product.rows as u64, product.outputs as u64, product.inputs as u64);
        // Null marks a descriptor that does not exist yet; dropping skips it.
        let mut made = Self {
            product: std::ptr::null_mut(),
            weights: std::ptr::null_mut(),
            input: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
        };
        made.weights = result::create_matrix_layout(kind, inputs, outputs, inputs as i64)?;
        made.input = result::create_matrix_layout(kind, inputs, rows, inputs as i64)?;
        made.output = result::create_matrix_layout(Type::CUDA_R_32F, outputs, rows, outputs as i64)?;
        made.product = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F)?;
        let transposed = 1i32;
        // SAFETY: the description is live, and the attribute is an i32.
        unsafe {
            result::set_matmul_desc_attribute(
                made.product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                std::ptr::from_ref(&transposed).cast(),
                size_of::<i32>(),
            )?;
        }
        Ok(made)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: each was made by the library and is destroyed here alone.
        unsafe {
            for layout in [self.weights, self.input, self.output] {
                if !layout.is_null() {
                    result::destroy_matrix_layout(layout).ok();
                }
            }
            if !self.product.is_null() {
                result::destroy_matmul_desc(self.product).ok();
            }
        }
    }
}
