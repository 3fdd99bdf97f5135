//! Subquadratic and block-sparse attention kernels over paged K and V
