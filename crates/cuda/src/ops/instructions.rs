//! The matrix instructions of prefill, and their choice for a device.

use std::fmt;
use std::str::FromStr;

use riffle_attention::{Format, Selection};

use super::attention::{AttentionCall, AttentionOptions, Outputs, Pages, Queries, module};
use super::prefill::prefill_by;
use super::reads::{Reads, TileReads};
use crate::{CudaError, DeviceBuffer, Gpu, Stream};

/// Environment variable with the instructions of prefill, for measurements.
const VARIABLE: &str = "RIFFLE_PREFILL";
const REQUIREMENT: &str = "wgmma is for heads of 64 or 128 on compute capability 9.0";

/// The matrix instructions of a prefill kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefillInstructions {
    /// `mma.sync`, of one warp: for every device and every width.
    Mma,
    /// `wgmma`, of four warps together, asynchronous: compute capability 9.0, heads of 64 or 128.
    Wgmma,
}

impl PrefillInstructions {
    /// Both instructions.
    pub const ALL: [Self; 2] = [Self::Mma, Self::Wgmma];

    /// True if there is a kernel with these instructions for a device and a width.
    pub fn are_on(self, gpu: &Gpu, head_dim: usize) -> bool {
        match self {
            Self::Mma => true,
            Self::Wgmma => gpu.info().capability == (9, 0) && [64, 128].contains(&head_dim),
        }
    }
}

impl fmt::Display for PrefillInstructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
        })
    }
}

impl FromStr for PrefillInstructions {
    type Err = CudaError;

    fn from_str(name: &str) -> Result<Self, CudaError> {
        let found = Self::ALL.into_iter().find(|known| known.to_string() == name);
        found.ok_or_else(|| refused(name, "use mma or wgmma"))
    }
}

fn refused(value: &str, requirement: &'static str) -> CudaError {
    CudaError::Setting {
        variable: VARIABLE,
        value: value.to_owned(),
        requirement,
    }
}

/// Instructions of prefill on a device, and the reason: `wgmma (as mma on a first case)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefillChoice {
    /// The instructions.
    pub instructions: PrefillInstructions,
    /// The reason for the choice.
    pub reason: String,
}

impl fmt::Display for PrefillChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.instructions, self.reason)
    }
}

impl PrefillChoice {
    /// Chooses the instructions for pages of this width and these formats. A device uses `wgmma` if a small first
    /// case gives the same result as `mma`; the case runs once. `RIFFLE_PREFILL` (`mma`, `wgmma`) selects either
    /// without a test.
    ///
    /// # Errors
    /// A variable with an unknown value, or with instructions that the device lacks; a lost device.
    pub fn choose(gpu: &Gpu, head_dim: usize, key_format: Format, value_format: Format) -> Result<Self, CudaError> {
        let formats = [key_format, value_format].map(|format| match format {
            Format::Bf16 => Format::Bf16,
            _ => Format::F16,
        });
        let kernel = module("warpgroup_prefill.cu", head_dim, formats[0], formats[1]);
        gpu.prefill_choice(&kernel, || {
            let asked = std::env::var(VARIABLE).ok();
            let is_there = PrefillInstructions::Wgmma.are_on(gpu, head_dim);
            Self::decide(asked.as_deref(), is_there, || try_first_case(gpu, head_dim, formats))
        })
    }

    fn decide(
        asked: Option<&str>,
        is_there: bool,
        try_it: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        use PrefillInstructions::{Mma, Wgmma};
        let (instructions, reason) = match asked.map(str::parse).transpose()? {
            Some(Wgmma) if !is_there => return Err(refused("wgmma", REQUIREMENT)),
            Some(asked) => (asked, format!("{VARIABLE} says so")),
            None if !is_there => (Mma, REQUIREMENT.to_owned()),
            None => match try_it() {
                Ok(()) => (Wgmma, "as mma on a first case".to_owned()),
                Err(error @ CudaError::DeviceLost { .. }) => return Err(error),
                Err(error) => (Mma, format!("wgmma is out: {error}")),
            },
        };
        Ok(Self { instructions, reason })
    }
}

/// Compares both on a first case.
fn try_first_case(gpu: &Gpu, head_dim: usize, formats: [Format; 2]) -> Result<(), CudaError> {
    let case = FirstCase::new(gpu, head_dim, formats)?;
    let expected = case.run(PrefillInstructions::Mma)?;
    let found = case.run(PrefillInstructions::Wgmma)?;
    // Both round weights to 16 bits, after sums in different orders.
    let tolerance = if formats.contains(&Format::Bf16) {
        1.0 / 64.0
    } else {
        1.0 / 512.0
    };
    compare(&found, &expected, tolerance)
}

/// A case that wraps around every buffer: masks, a page that ends within a tile, warps without rows.
struct FirstCase {
    stream: Stream,
    head_dim: usize,
    formats: [Format; 2],
    /// Addresses of the keys and of the values of each page.
    tables: [DeviceBuffer; 2],
    /// Memory that the tables point to.
    _planes: [DeviceBuffer; 2],
    queries: DeviceBuffer,
    reads: Reads,
}

impl FirstCase {
    const TOKENS: usize = 600;
    const PAGE_TOKENS: usize = 80;
    const PAGES: usize = Self::TOKENS.div_ceil(Self::PAGE_TOKENS);
    const ROWS: usize = 45;
    const GROUP: usize = 2;

    fn new(gpu: &Gpu, head_dim: usize, formats: [Format; 2]) -> Result<Self, CudaError> {
        let stream = gpu.stream()?;
        let mut random = Random(1);
        let elements = Self::PAGES * Self::PAGE_TOKENS * head_dim;
        let mut plane = |format| gpu.upload(&random.halves(format, elements));
        let planes = [plane(formats[0])?, plane(formats[1])?];
        let table = |plane: &DeviceBuffer| {
            let page_bytes = (Self::PAGE_TOKENS * head_dim * 2) as u64;
            let pages = 0..Self::PAGES as u64;
            let addresses: Vec<u64> = pages.map(|page| plane.all().address() + page * page_bytes).collect();
            gpu.upload(&addresses)
        };
        let tables = [table(&planes[0])?, table(&planes[1])?];
        let queries: Vec<f32> = (0..Self::ROWS * Self::GROUP * head_dim)
            .map(|_| random.next() as i32 as f32 / 2f32.powi(30))
            .collect();
        let queries = gpu.upload(&queries)?;
        let mut reads = Reads::new(gpu, head_dim, Self::GROUP)?;
        let tile = TileReads {
            kv_head: 0,
            start: Self::TOKENS - Self::ROWS,
            row: 0,
            rows: Self::ROWS,
            selection: &Selection::full(Self::TOKENS),
        };
        reads.set(&stream, &[tile], None)?;
        Ok(Self {
            stream,
            head_dim,
            formats,
            tables,
            _planes: planes,
            queries,
            reads,
        })
    }

    /// Output of the first case with these instructions.
    fn run(&self, instructions: PrefillInstructions) -> Result<Vec<f32>, CudaError> {
        let (gpu, row_stride) = (self.stream.gpu(), Self::GROUP * self.head_dim);
        let call = AttentionCall {
            queries: Queries {
                data: self.queries.all(),
                rows: Self::ROWS,
                row_stride,
            },
            pages: Pages {
                keys: self.tables[0].all(),
                values: self.tables[1].all(),
                kv_heads: 1,
                pages_per_head: Self::PAGES,
                page_tokens: Self::PAGE_TOKENS,
                head_dim: self.head_dim,
                key_format: self.formats[0],
                value_format: self.formats[1],
            },
            reads: &self.reads,
            options: AttentionOptions {
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                soft_cap: None,
                sinks: None,
            },
        };
        let data = gpu.allocate(4 * Self::ROWS * row_stride)?;
        let outputs = Outputs {
            data: data.all(),
            row_stride,
            log_sum_exp: None,
        };
        prefill_by(&self.stream, instructions, &outputs, &call, None)?;
        gpu.download(data.all(), &self.stream)
    }
}

/// Finds the first number whose difference exceeds `tolerance` times the largest expected number.
fn compare(found: &[f32], expected: &[f32], tolerance: f32) -> Result<(), CudaError> {
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    // A comparison with NaN is false, so NaN counts as a difference.
    let is_near = |found: f32, expected: f32| (found - expected).abs() <= tolerance * largest;
    match found
        .iter()
        .zip(expected)
        .position(|(found, expected)| !is_near(*found, *expected))
    {
        None => Ok(()),
        Some(at) => Err(CudaError::Disagreement {
            at,
            found: found[at],
            expected: expected[at],
        }),
    }
}

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 32) as u32
    }

    /// Bits of 16-bit floats with magnitudes from 1/4 to 1.
    fn halves(&mut self, format: Format, count: usize) -> Vec<u16> {
        let (least, range) = if format == Format::Bf16 {
            (0x3e80, 0x100)
        } else {
            (0x3400, 0x800)
        };
        let halves = (0..count).map(|_| {
            let bits = self.next();
            (bits >> 31) as u16 & 1 << 15 | (least + bits as u16 % range)
        });
        halves.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(asked: Option<&str>, is_there: bool, tried: Result<(), CudaError>) -> String {
        match PrefillChoice::decide(asked, is_there, || tried) {
            Ok(choice) => choice.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn wgmma_is_taken_where_it_is_and_agrees_and_the_variable_names_either() {
        let far = compare(&[1.0, f32::NAN], &[1.0, 2.0], 0.5);
        assert_eq!(decide(None, true, Ok(())), "wgmma (as mma on a first case)");
        assert_eq!(
            decide(None, true, far.clone()),
            "mma (wgmma is out: element 1 of a first case is NaN, expected 2)"
        );
        let no_compiler = CudaError::Compile {
            kernel: "a".to_owned(),
            line: "error: b".to_owned(),
        };
        assert_eq!(
            decide(None, true, Err(no_compiler)),
            "mma (wgmma is out: kernel a does not compile: error: b)"
        );
        let untried = format!("mma ({REQUIREMENT})");
        assert_eq!(decide(None, false, Ok(())), untried);
        assert_eq!(decide(Some("mma"), true, Ok(())), "mma (RIFFLE_PREFILL says so)");
        assert_eq!(decide(Some("wgmma"), true, far), "wgmma (RIFFLE_PREFILL says so)");
        assert_eq!(
            decide(Some("wgmma"), false, Ok(())),
            format!("error: RIFFLE_PREFILL=wgmma: {REQUIREMENT}")
        );
        assert_eq!(
            decide(Some("fast"), true, Ok(())),
            "error: RIFFLE_PREFILL=fast: use mma or wgmma"
        );
        let lost = CudaError::DeviceLost { what: "c".to_owned() };
        assert!(decide(None, true, Err(lost)).starts_with("error: the GPU was lost"));
    }

    #[test]
    fn numbers_agree_within_the_tolerance_times_the_largest() {
        assert_eq!(compare(&[0.0, 4.0], &[0.5, -4.5], 8.5 / 4.5), Ok(()));
        assert!(matches!(
            compare(&[0.0, 4.0], &[0.5, -4.5], 1.8),
            Err(CudaError::Disagreement { at: 1, .. })
        ));
    }
}
