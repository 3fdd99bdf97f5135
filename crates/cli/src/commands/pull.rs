//! `riffle pull`: downloads a model of the hub, or lists the models with short names.

use riffle_engine::{available_memory_bytes, human_bytes};
use riffle_hub::{Machine, TRIED, gigabytes};

use super::print;
use crate::console;
use crate::failure::Failure;
use crate::hub_args::PullArguments;

pub(crate) fn pull(arguments: &PullArguments) -> Result<(), Failure> {
    match &arguments.name {
        Some(name) => download(name, arguments.quant.as_deref()),
        None => list(),
    }
}

/// This machine, for the choice of a model.
pub(crate) fn machine() -> Machine {
    Machine {
        memory_bytes: available_memory_bytes(),
        bytes_per_s: riffle_eval::memory_read_rate(),
    }
}

/// Lists the models with short names. Models that fit this machine come first.
fn list() -> Result<(), Failure> {
    let machine = machine();
    let fits = |memory: u64| memory <= machine.memory_bytes;
    let header = [
        "NAME",
        "REPOSITORY",
        "FILE",
        "SIZE",
        "MEMORY",
        "CONTEXT",
        "TOKENS/S",
        "KNOWN BY",
    ];
    let (mut fitting, mut others) = (Vec::new(), Vec::new());
    for model in TRIED {
        let row = [
            model.name.to_owned(),
            model.repository.to_owned(),
            model.quantisation.to_owned(),
            gigabytes(model.file_bytes),
            gigabytes(model.memory_bytes()),
            super::grouped(model.context_tokens as usize),
            format!("{:.0}", machine.tokens_per_s(model.file_bytes)),
            model.evidence.words().to_owned(),
        ];
        if fits(model.memory_bytes()) {
            fitting.push(row);
        } else {
            others.push(row);
        }
    }
    let split = fitting.len();
    fitting.append(&mut others);
    let lines = super::aligned(&header.map(str::to_owned), &fitting, 3..7);
    let mut text = format!("{}\n", lines[0]);
    for (at, line) in lines[1..].iter().enumerate() {
        if at == split {
            text += "more memory than is free here:\n";
        }
        text += &format!("{line}\n");
    }
    print(&text)?;
    console::note(format!(
        "memory is for a context of 8,192 tokens, {} are free; sizes and rates are estimates; \"architecture\": compared with transformers on small random weights, the file was not run",
        human_bytes(machine.memory_bytes)
    ));
    console::note("get one: riffle pull NAME; any model of the hub: riffle pull OWNER/NAME");
    Ok(())
}

#[cfg(feature = "pull")]
fn download(text: &str, quantisation: Option<&str>) -> Result<(), Failure> {
    use std::time::Instant;

    use riffle_hub::{ModelPart, PullSteps, Settings};

    use crate::interrupt::Interrupt;
    use crate::progress::PullDisplay;

    let name = named(text, quantisation)?;
    let settings = Settings::from_environment()?;
    let interrupt = Interrupt::install()?;
    let mut display = PullDisplay::new();
    let start = Instant::now();
    let steps = PullSteps {
        choose: &mut |offers| choose(offers, &machine()),
        look: &mut super::first_look::look,
        progress: &mut |progress| {
            display.update(progress);
            interrupt.flow()
        },
    };
    let pulled = riffle_hub::pull_with(&settings, &name, steps);
    display.finish();
    let pulled = pulled?;
    let taken = match (&name.part, &pulled.quantisation) {
        (ModelPart::Preferred, Some(quantisation)) => name.with_part(ModelPart::Quantisation(quantisation.clone())),
        _ => name.clone(),
    };
    let came = match pulled.bytes_downloaded {
        0 => "everything was there".to_owned(),
        bytes => format!(
            "{} downloaded in {:.0} s",
            human_bytes(bytes),
            start.elapsed().as_secs_f64()
        ),
    };
    console::note(format!("{taken}: {}, {came}", human_bytes(pulled.bytes)));
    let shown = if name.to_string() == text {
        &taken.to_string()
    } else {
        text
    };
    console::note(format!("next: riffle run --model {shown} --prompt \"…\""));
    console::print(&format!("{}\n", pulled.path.display()))
}

/// The model of the command line's words.
#[cfg(feature = "pull")]
fn named(text: &str, quantisation: Option<&str>) -> Result<riffle_hub::ModelName, Failure> {
    use riffle_hub::{HubError, ModelName, ModelPart, nearest, tried};

    let name = match text.parse::<ModelName>() {
        Ok(name) => name,
        Err(error) => match (tried(text), nearest(text)) {
            (Some(model), _) => {
                console::note(format!("{text} is {}", model.repository));
                model.repository.parse()?
            }
            (None, near) if near.is_empty() => return Err(error.into()),
            (None, near) => {
                let (name, near) = (text.to_owned(), near.join(", "));
                return Err(HubError::Unknown { name, near }.into());
            }
        },
    };
    let Some(quantisation) = quantisation else {
        return Ok(name);
    };
    if name.part != ModelPart::Preferred {
        return Err(Failure::new(format!(
            "{text} names a quantisation or a file already: leave out --quant"
        )));
    }
    let part = ModelPart::quantisation(quantisation);
    part.map(|part| name.with_part(part)).ok_or_else(|| {
        Failure::new(format!(
            "--quant is {quantisation:?}, but it must be a quantisation such as Q4_K_M"
        ))
    })
}

/// Selects one of a repository's quantisations, and shows all.
#[cfg(feature = "pull")]
fn choose(offers: &[riffle_hub::Offer], machine: &Machine) -> Option<usize> {
    let best = machine.best(offers)?;
    let mut order: Vec<usize> = (0..offers.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(offers[at].bytes), at));
    let place = order.iter().position(|&at| at == best).unwrap_or(0);
    let first = place
        .saturating_sub(MOST_SHOWN / 2)
        .min(order.len().saturating_sub(MOST_SHOWN));
    let shown = &order[first..order.len().min(first + MOST_SHOWN)];
    let header = ["", "QUANTISATION", "SIZE", "MEMORY", "TOKENS/S", ""].map(str::to_owned);
    let rows: Vec<[String; 6]> = shown
        .iter()
        .map(|&at| {
            let offer = &offers[at];
            let remark = if at == best {
                "taken"
            } else if machine.fits(offer) {
                ""
            } else {
                "more memory than is free"
            };
            [
                if at == best { "*" } else { "" }.to_owned(),
                offer.quantisation.clone().unwrap_or_else(|| offer.file.clone()),
                human_bytes(offer.bytes),
                human_bytes(offer.memory_bytes()),
                format!("{:.0}", machine.tokens_per_s(offer.bytes)),
                remark.to_owned(),
            ]
        })
        .collect();
    console::note(super::aligned(&header, &rows, 2..5).join("\n"));
    let more = order.len() - shown.len();
    let more = if more > 0 {
        format!("{more} more; ")
    } else {
        String::new()
    };
    console::note(format!(
        "{more}estimates for {} of free memory, read at {:.0} GB/s; --quant NAME takes another",
        human_bytes(machine.memory_bytes),
        machine.bytes_per_s / 1e9
    ));
    Some(best)
}

/// Rows of the table of quantisations.
#[cfg(feature = "pull")]
const MOST_SHOWN: usize = 12;

#[cfg(not(feature = "pull"))]
fn download(text: &str, _quantisation: Option<&str>) -> Result<(), Failure> {
    Err(Failure::new(format!(
        "this riffle was built without downloads (feature pull); get the model with another program: hf download {text}"
    )))
}
