//! Converts planes of pages from the CPU's layout to the device's.

use bytemuck::{Pod, Zeroable};
use riffle_attention::{Format, LANES};

use super::attention::format_number;
use super::{MAP_THREADS, PlaneKind, small};
use crate::pages::DeviceList;
use crate::{CudaError, Grid, ModuleSource, Region, Stream};

/// Whole stripes of a plane to convert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneMove<'a> {
    /// The whole plane of a page on the device.
    pub(crate) to: Region<'a>,
    /// The tokens in the CPU's layout.
    pub(crate) from: Region<'a>,
    /// Index of the first token in the page, a multiple of 16.
    pub(crate) first_token: usize,
}

/// Layout of the planes of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneLayout {
    pub(crate) kind: PlaneKind,
    pub(crate) format: Format,
    pub(crate) head_dim: usize,
    pub(crate) page_tokens: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Move {
    to: u64,
    from: u64,
    first: u32,
    tokens: u32,
}

/// Arranges planes like [`plane_to_device`](super::plane_to_device), all in one launch.
///
/// # Errors
/// f32, partial stripes, stripes outside of their page, a lost device.
pub(crate) fn arrange_planes(
    stream: &Stream,
    list: &mut DeviceList,
    layout: &PlaneLayout,
    planes: &[PlaneMove<'_>],
) -> Result<(), CudaError> {
    let PlaneLayout {
        kind,
        format,
        head_dim,
        page_tokens,
    } = *layout;
    let number = format_number(format)?;
    let plane_bytes = format.plane_bytes(page_tokens, head_dim);
    let stripe_bytes = format.plane_bytes(LANES, head_dim);
    let mut moves = Vec::with_capacity(planes.len());
    let mut most = 0;
    for plane in planes {
        let tokens = plane.from.bytes() / stripe_bytes * LANES;
        let whole = plane.from.bytes().is_multiple_of(stripe_bytes) && plane.first_token.is_multiple_of(LANES);
        if !whole || plane.first_token + tokens > page_tokens || plane.to.bytes() < plane_bytes {
            return Err(CudaError::Mismatch {
                what: "bytes of a plane",
                expected: plane_bytes,
                found: plane.from.bytes(),
            });
        }
        most = most.max(tokens);
        moves.push(Move {
            to: plane.to.address(),
            from: plane.from.address(),
            first: plane.first_token as u32,
            tokens: tokens as u32,
        });
    }
    if most == 0 {
        return Ok(());
    }
    let kernel = stream.gpu().kernel(&ModuleSource::new("arrange.cu", &[]), "arrange")?;
    let arguments = [
        list.set(stream, &moves)?.into(),
        u32::from(kind == PlaneKind::Keys).into(),
        number.into(),
        small("head_dim", head_dim)?.into(),
        small("page tokens", page_tokens)?.into(),
    ];
    let blocks = (most * head_dim).div_ceil(8 * MAP_THREADS as usize);
    stream.launch(&kernel, Grid::new([blocks, moves.len(), 1], MAP_THREADS), &arguments)
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    use super::*;
    use crate::ops::plane_to_device;
    use crate::{EmulatedOptions, Gpu, KernelCache};

    #[test]
    #[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
    fn planes_are_arranged_as_on_the_cpu_whole_and_in_parts() {
        let gpu = Gpu::emulated(EmulatedOptions::default(), KernelCache::of_user()).expect("g++ compiles the kernels");
        let stream = gpu.stream().unwrap();
        let mut list = DeviceList::new(&gpu).unwrap();
        let page_tokens = 64;
        for head_dim in [32, 80, 128] {
            for format in [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0] {
                for kind in [PlaneKind::Keys, PlaneKind::Values] {
                    let bytes = format.plane_bytes(page_tokens, head_dim);
                    let cpu: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect();
                    let mut expected = vec![0; bytes];
                    plane_to_device(kind, format, head_dim, &cpu, &mut expected).unwrap();
                    let from = gpu.upload(&cpu).unwrap();
                    let to = gpu.upload(&vec![0u8; bytes]).unwrap();
                    let cut = format.plane_bytes(16, head_dim);
                    let parts = [(0..cut, 0), (cut..bytes, 16)].map(|(part, first_token)| PlaneMove {
                        to: to.all(),
                        from: from.region(part),
                        first_token,
                    });
                    let layout = PlaneLayout {
                        kind,
                        format,
                        head_dim,
                        page_tokens,
                    };
                    arrange_planes(&stream, &mut list, &layout, &parts).unwrap();
                    let found: Vec<u8> = gpu.download(to.all(), &stream).unwrap();
                    assert!(found == expected, "{kind:?} {format:?} {head_dim}");
                }
            }
        }
    }
}
