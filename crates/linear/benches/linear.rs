//! Products of a square matrix with 1, 8, 64 and 512 tokens in every format. `examples/rates.rs` compares the same
//! products with the machine's limits.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use riffle_linear::{PackedMatrix, WeightFormat};

const SIZE: usize = 2048;

fn products(criterion: &mut Criterion) {
    for &format in WeightFormat::ALL {
        let row_bytes = format.row_bytes(SIZE).expect("whole blocks");
        let bytes: Vec<u8> = (0..SIZE * row_bytes)
            .map(|index| if index % 2 == 1 { 0x2c } else { index as u8 })
            .collect();
        let matrix = PackedMatrix::pack(format, SIZE, SIZE, &bytes).expect("the bytes fit the shape");
        let mut group = criterion.benchmark_group(format.name());
        group.sample_size(10);
        for tokens in [1, 8, 64, 512] {
            let input: Vec<f32> = (0..tokens * SIZE).map(|index| (index % 17) as f32 - 8.0).collect();
            let mut output = vec![0.0; tokens * SIZE];
            group.throughput(Throughput::Elements((2 * tokens * SIZE * SIZE) as u64));
            group.bench_function(BenchmarkId::from_parameter(tokens), |bencher| {
                bencher.iter(|| matrix.matmul(&input, &mut output));
            });
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
