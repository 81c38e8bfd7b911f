//! The whole way, as a program takes it that is no command line: a name, settings, an engine, an answer.

use crate::{ModelSettings, Settings};
use engine::{Event, Prompt, RawRequest};

#[test]
fn the_built_in_model_answers() {
    let checkpoint = crate::shipped().expect("it is in the binary");
    let model = ModelSettings { threads: Some(1), ..ModelSettings::default() };
    let settings = Settings { model, max_num_seqs: 1, max_model_len: Some(256), ..Settings::default() };
    let chosen = settings.model.choose(&checkpoint).expect("a good checkpoint");
    assert_eq!(chosen.notice(), None, "bf16, as it is stored, fits");
    let engine = settings.start(&checkpoint, chosen, &mut |_| {}).expect("it starts");
    assert_eq!((engine.model().name.as_str(), engine.model().max_model_len), (crate::SHIPPED_NAME, 256));
    let raw =
        RawRequest { max_tokens: Some(4), ignore_eos: true, ..RawRequest::new(Prompt::Text("A lamp".to_string())) };
    let mut stream = engine.submit(engine.validate(raw).expect("a good request")).expect("there is room");
    let outputs = std::iter::from_fn(|| stream.blocking_recv());
    assert_eq!(outputs.filter(|output| matches!(output, Event::Token { .. })).count(), 4);
    engine.stop();
}

#[test]
fn a_name_that_leads_nowhere_says_so() {
    let offline = hub::HubEnv { offline: true, ..hub::HubEnv::default() };
    for name in ["./no/such/directory", "no-organisation"] {
        let error = crate::open(Some(name), &offline, &mut |_| true).expect_err(name);
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}
