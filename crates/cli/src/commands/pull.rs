//! `riffle pull`: a model of the hub is downloaded.

use crate::failure::Failure;
use crate::hub_args::PullArguments;

#[cfg(feature = "pull")]
pub(crate) fn pull(arguments: &PullArguments) -> Result<(), Failure> {
    use std::time::Instant;

    use riffle_engine::human_bytes;
    use riffle_hub::{ModelName, ModelPart, Settings};

    use crate::console;
    use crate::interrupt::Interrupt;
    use crate::progress::PullDisplay;

    let name: ModelName = arguments.name.parse()?;
    let settings = Settings::from_environment()?;
    let interrupt = Interrupt::install()?;
    let mut display = PullDisplay::new();
    let start = Instant::now();
    let pulled = riffle_hub::pull_after_look(&settings, &name, &mut super::first_look::look, &mut |progress| {
        display.update(progress);
        interrupt.flow()
    });
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
    if name.part == ModelPart::Preferred && !pulled.others.is_empty() {
        console::note(format!(
            "also there: {} (riffle pull {}:…)",
            pulled.others.join(", "),
            name.repository()
        ));
    }
    console::note(format!("next: riffle run --model {name} --prompt \"…\""));
    console::print(&format!("{}\n", pulled.path.display()))
}

#[cfg(not(feature = "pull"))]
pub(crate) fn pull(arguments: &PullArguments) -> Result<(), Failure> {
    Err(Failure::new(format!(
        "this riffle was built without downloads (feature pull); get the model with another program: hf download {}",
        arguments.name
    )))
}
