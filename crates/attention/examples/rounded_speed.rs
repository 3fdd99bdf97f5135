//! scratch
#[path = "../examples/noise/mod.rs"]
mod noise;
use noise::noise;
use riffle_attention::*;
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rows_tile: usize = args.get(1).map_or(64, |x| x.parse().unwrap());
    let group = 4;
    for (head_dim, tokens) in [(128usize, 8192usize), (64, 8192), (128, 32768), (64, 32768)] {
        let source = noise(256 * head_dim + 4096);
        let pages: Vec<(Vec<u16>, Vec<u16>)> = (0..tokens / 256)
            .map(|p| {
                let (mut k, mut v) = (vec![0; 256 * head_dim], vec![0; 256 * head_dim]);
                write_keys(
                    &mut PlaneMut::F16(&mut k),
                    head_dim,
                    0,
                    256,
                    &source[p * 13 % 4000..],
                    head_dim,
                )
                .unwrap();
                write_values(
                    &mut PlaneMut::F16(&mut v),
                    head_dim,
                    0,
                    256,
                    &source[p * 29 % 4000..],
                    head_dim,
                )
                .unwrap();
                (k, v)
            })
            .collect();
        let views: Vec<PageView> = pages
            .iter()
            .enumerate()
            .map(|(p, (k, v))| PageView {
                start: p * 256,
                tokens: 256,
                keys: Plane::F16(k),
                values: Plane::F16(v),
            })
            .collect();
        let kv = KvView {
            head_dim,
            pages: &views,
        };
        let queries = noise(rows_tile * group * head_dim);
        let tile = QueryTile {
            data: &queries,
            rows: rows_tile,
            row_stride: group * head_dim,
            group,
            head_dim,
            start: tokens - rows_tile,
        };
        let selection = Selection::full(tokens);
        let job = AttendJob {
            queries: tile,
            kv,
            selection: &selection,
        };
        let mut line = format!("d{head_dim} {tokens} rows {rows_tile}x{group}:");
        let mut best = [f64::MAX; 2];
        let mut errors = [0.0; 2];
        let mut outs = vec![];
        for turn in 0..9 {
            for (n, arithmetic) in [Arithmetic::Expanded, Arithmetic::Rounded].into_iter().enumerate() {
                let options = AttendOptions::for_head_dim(head_dim).with_arithmetic(arithmetic);
                let mut partials = [Partial::new(rows_tile, group, head_dim)];
                let t = Instant::now();
                attend_batch(&[job], &options, &mut partials).unwrap();
                best[n] = best[n].min(t.elapsed().as_secs_f64());
                if turn == 0 {
                    let mut out = vec![0.0; rows_tile * group * head_dim];
                    partials[0].finish_into(&mut out, group * head_dim, None).unwrap();
                    outs.push(out);
                }
            }
        }
        let (mut e, mut s) = (0.0, 0.0);
        for (a, b) in outs[0].iter().zip(&outs[1]) {
            e += f64::from(a - b).powi(2);
            s += f64::from(*a).powi(2);
        }
        errors[0] = (e / s).sqrt();
        let cells = (rows_tile * group * tokens / 16) as f64;
        let flops = (rows_tile * group * tokens * head_dim * 4) as f64;
        line += &format!(
            " exact {:.1} ms {:.0} GF {:.1} ns/cell; rounded {:.1} ms {:.0} GF {:.1} ns/cell; ratio {:.2}; error {:.2e}",
            best[0] * 1e3,
            flops / best[0] / 1e9,
            best[0] * 1e9 / cells,
            best[1] * 1e3,
            flops / best[1] / 1e9,
            best[1] * 1e9 / cells,
            best[0] / best[1],
            errors[0]
        );
        println!("{line} peak {:.0}", ceiling::multiply_add_gflops());
    }
}
