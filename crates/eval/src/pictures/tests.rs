use super::*;

const LONG: &str = "xattention:block=128,stride=8,tau=0.95,min_budget=1024,tail=128 <& \"escaped\">";

const LENGTHS: [&str; 3] = ["4K", "16K", "128K"];

fn heat_map(columns: [&str; 3]) -> Picture {
    let cell = |share: f64| {
        Some(HeatCell {
            share,
            text: format!("{:.0}/3", share * 3.0),
        })
    };
    HeatMap {
        title: "Needles found: multi-key, asked after the document was read, and more than fits in a line".to_owned(),
        subtitle: LONG.repeat(3),
        column_label: "document length, tokens".to_owned(),
        row_label: "depth in the document".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: ["9%", "50%", "100%"].map(str::to_owned).to_vec(),
        cells: [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]
            .into_iter()
            .map(cell)
            .chain([const { None }; 5])
            .collect(),
        scale_label: "found exactly".to_owned(),
        scale_names: vec!["none".to_owned(), "all".to_owned()],
    }
    .draw()
}

fn lines(series: usize) -> Picture {
    let points =
        |place: usize| (10..=17).map(move |power| (f64::from(1 << power), 1e5 / f64::from(power) / (place + 1) as f64));
    LineChart {
        title: "Prompt throughput by policy".to_owned(),
        subtitle: "Model shipped.".to_owned(),
        x_label: "prompt length, tokens".to_owned(),
        y_label: "prompt tokens/s".to_owned(),
        scale: [Scale::Rates, Scale::Values, Scale::Shares][series % 3],
        series: (0..series)
            .map(|place| Series {
                name: if place == 1 {
                    LONG.to_owned()
                } else {
                    format!("policy {place}")
                },
                points: points(place).chain([(3e5, f64::NAN)]).collect(),
            })
            .collect(),
    }
    .draw()
}

/// Few columns under a long label.
fn narrow_heat_map(columns: usize) -> Picture {
    HeatMap {
        title: "Score by policy and task, decode".to_owned(),
        subtitle: String::new(),
        column_label: "policy, choosing in this phase; the other is dense".repeat(columns),
        row_label: "task and tokens".to_owned(),
        columns: vec!["quest".to_owned(); columns],
        rows: vec!["needle:multi-key:second-turn 128K".to_owned()],
        cells: vec![None; columns],
        scale_label: "mean score".to_owned(),
        scale_names: vec!["0%".to_owned(), "100%".to_owned()],
    }
    .draw()
}

fn scores_over_shares(least: f64, series: usize) -> Picture {
    let points = (1..=3).map(|place| (least * f64::from(place), 0.25 * f64::from(place)));
    let full = Series {
        name: "full".to_owned(),
        points: vec![(1.0, 1.0)],
    };
    let others = (0..series).map(|place| Series {
        name: format!("policy {place}"),
        points: points.clone().collect(),
    });
    LineChart {
        title: "Score over the share of pairs read, prefill".to_owned(),
        subtitle: "Means over 2 pairs of task and length.".to_owned(),
        x_label: "share of the causal pairs read".to_owned(),
        y_label: "mean score".to_owned(),
        scale: Scale::ScoreOverShare,
        series: std::iter::once(full).chain(others).collect(),
    }
    .draw()
}

fn stack(bars: usize) -> Picture {
    let bar = |place: usize| Bar {
        name: format!("{}K", 4 << place),
        bytes: vec![2 << 20, 0, 1 << 20, 4 << (18 + place)],
        mark_bytes: (place != 1).then_some(8 << (18 + place)),
    };
    Stack {
        title: "Memory by part".to_owned(),
        subtitle: LONG.to_owned(),
        x_label: "prompt length, tokens".to_owned(),
        parts: ["weights", "KV pages, device", "workspace", "KV pages, RAM"]
            .map(str::to_owned)
            .to_vec(),
        mark: Some("peak RSS".to_owned()),
        bars: (0..bars).map(bar).collect(),
    }
    .draw()
}

fn share_map(rows: usize, names: bool) -> Picture {
    let columns = 64;
    let shares = (0..rows * columns).map(|at| {
        if at % columns <= at / columns {
            1.0 / (at % columns + 1) as f64
        } else {
            0.0
        }
    });
    ShareMap {
        title: "Attention of layer 1, head 2".to_owned(),
        subtitle: LONG.to_owned(),
        row_label: "position of the query, tokens".to_owned(),
        row_names: if names {
            (0..rows).map(|row| format!("{} · {}", row / 4, row % 4)).collect()
        } else {
            Vec::new()
        },
        rows,
        columns,
        tokens: 44_725,
        shares: shares.collect(),
        chosen: if names {
            Vec::new()
        } else {
            (0..rows * columns).map(|at| at % columns < 4).collect()
        },
        remarks: names.then(|| ("sinks · alike".to_owned(), vec!["12.3% · 0.45".to_owned(); rows])),
    }
    .draw()
}

pub(super) fn all() -> Vec<Picture> {
    vec![
        heat_map(LENGTHS),
        heat_map(["full", "streaming:sinks=64,window=1024", LONG]),
        narrow_heat_map(1),
        narrow_heat_map(2),
        scores_over_shares(0.1, 1),
        scores_over_shares(0.002, 14),
        lines(0),
        lines(1),
        lines(11),
        stack(1),
        stack(5),
        stack(14),
        share_map(64, false),
        share_map(16, true),
    ]
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of the labels of each picture")]
fn labels_units_and_values_are_in_the_svg_and_in_the_alternative_text() {
    let cases: [(Picture, &[&str]); 4] = [
        (
            heat_map(LENGTHS),
            &[
                "4K",
                "128K",
                "9%",
                "100%",
                "1/3",
                "3/3",
                "–",
                "depth in the document",
                "document length, tokens",
                "found exactly",
                "none",
                "all",
            ],
        ),
        (
            lines(3),
            &[
                "1K",
                "64K",
                "prompt length, tokens",
                "prompt tokens/s",
                "policy 0",
                "policy 2",
                "xattention:block=128",
            ],
        ),
        (
            stack(3),
            &[
                "MiB",
                "4K",
                "16K",
                "weights",
                "KV pages, RAM",
                "peak RSS",
                "prompt length, tokens",
            ],
        ),
        (
            share_map(64, false),
            &[
                "44.7K",
                "position of the key, tokens",
                "position of the query, tokens",
                "read by the policy",
                "≤ 0.01%",
                "100%",
            ],
        ),
    ];
    for (picture, labels) in cases {
        let svg = picture.to_svg();
        for label in labels {
            assert!(
                svg.contains(&format!("{label}<")) || svg.contains(&format!("{label},")) || svg.contains(label),
                "no {label}"
            );
        }
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("role=\"img\""));
        assert!(!svg.contains("<&"), "unescaped text");
        assert!(picture.alt().len() > 60);
    }
    assert!(!stack(2).to_svg().contains("device"), "a part that no bar has");
}

#[test]
fn scores_over_shares_are_in_percent_and_series_of_one_colour_differ_in_shape() {
    let linear = scores_over_shares(0.1, 1);
    assert!(
        linear
            .alt()
            .contains("full: 100% at 100%; policy 0: 25% at 10%, 50% at 20%"),
        "{}",
        linear.alt()
    );
    let svg = linear.to_svg();
    for label in [
        ">0%<",
        ">60%<",
        ">100%<",
        "share of the causal pairs read<",
        "policy 0, 20%: 50%",
    ] {
        assert!(svg.contains(label), "no {label}");
    }
    let svg = scores_over_shares(0.002, 14).to_svg();
    assert!(svg.contains("logarithmic"));
    // Entries of the legend: a piece of line, a marker, a name.
    let markers: Vec<&str> = svg.lines().filter(|line| line.ends_with("Z\"/>")).collect();
    let shapes: std::collections::BTreeSet<String> = markers.iter().map(|line| relative(line)).collect();
    assert_eq!((markers.len(), shapes.len()), (15, 15), "{markers:?}");
}

/// A marker's class, and its corners relative to the first.
fn relative(marker: &str) -> String {
    let data = marker.split(" d=\"M").nth(1).unwrap().trim_end_matches("Z\"/>");
    let corners: Vec<Vec<f64>> = data
        .split('L')
        .map(|corner| corner.split(' ').map(|number| number.parse().unwrap()).collect())
        .collect();
    let class = marker.split('"').nth(1).unwrap();
    let corners = corners
        .iter()
        .map(|corner| format!("{:.1} {:.1}", corner[0] - corners[0][0], corner[1] - corners[0][1]));
    format!("{class} {}", corners.collect::<Vec<_>>().join(" "))
}

#[test]
fn the_same_data_gives_the_same_bytes() {
    for (picture, again) in all().into_iter().zip(all()) {
        assert_eq!(picture.to_svg(), again.to_svg());
    }
}

#[test]
fn a_picture_is_written_under_its_name_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let files = heat_map(LENGTHS).write(&folder.path().join("below/map.v1")).unwrap();
    let kinds: &[&str] = if cfg!(feature = "png") {
        &["svg", "png"]
    } else {
        &["svg"]
    };
    let expected = kinds
        .iter()
        .map(|kind| folder.path().join(format!("below/map.v1.{kind}")));
    assert_eq!(files, expected.collect::<Vec<PathBuf>>());
    assert_eq!(
        std::fs::read_dir(folder.path().join("below")).unwrap().count(),
        kinds.len()
    );
    let blocked = folder.path().join("below/map.v1.svg/x");
    assert!(
        heat_map(LENGTHS)
            .write(&blocked)
            .unwrap_err()
            .to_string()
            .contains("map.v1.svg")
    );
}
