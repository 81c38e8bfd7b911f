//! Whole answers, as soon as they are.

use std::sync::Arc;

use dialect::AnswerPart;
use engine::receipt::Receipt;
use engine::{Event, TokenLogprob};
use telemetry::timeline::RequestTrace;
use transport::answer_memory::Charge;
use transport::error::{ApiError, ApiResult};

use super::{EventStream, FinishInfo, Parsed, ResponsePlan, StreamParser, Totals};
use crate::app::App;
use crate::endpoint::Endpoint;

/// One answer of one prompt, while it grows.
#[derive(Default)]
pub(crate) struct Answer {
    /// All that the model wrote.
    pub(crate) text: String,
    /// The same as parsed parts, where a parser is set.
    pub(crate) parts: Option<Vec<AnswerPart>>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) end: FinishInfo,
    pub(crate) receipt: Option<Receipt>,
}

/// All answers of a request.
pub(crate) struct CollectedAnswer {
    pub(crate) answers: Vec<Answer>,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) prompt_logprobs: Vec<Vec<Option<TokenLogprob>>>,
    /// Vectors of the prompts, where those are all that is wanted.
    pub(crate) embeddings: Vec<Vec<f32>>,
    pub(crate) totals: Totals,
    pub(crate) trace: Arc<RequestTrace>,
    /// Memory set aside for all this.
    pub(crate) charge: Option<Charge>,
}

/// Waits for the whole answer.
pub(crate) async fn gather(
    app: &Arc<App>,
    plan: &ResponsePlan,
    mut outputs: EventStream,
) -> ApiResult<CollectedAnswer> {
    let prompts = outputs.prompts();
    let mut answers: Vec<Answer> = Vec::new();
    answers.resize_with(prompts.len() * plan.num_answers, Answer::default);
    let mut parsers: Vec<_> = (0..answers.len()).map(|index| StreamParser::of(plan, outputs.trace(), index)).collect();
    let mut prompt_logprobs: Vec<Vec<Option<TokenLogprob>>> = vec![Vec::new(); prompts.len()];
    let mut embeddings = vec![Vec::new(); prompts.len()];
    let mut totals = Totals::of(plan);
    // Ollama's clients get no half of a call, streamed or not: its parts are those of a stream.
    let as_streamed = plan.endpoint == Endpoint::OllamaChat;
    let (mut parsed, mut streamed) = (Vec::new(), Vec::new());
    while let Some((prompt, output)) = outputs.next().await {
        let first = prompt * plan.num_answers;
        match output {
            // Only streams ask for it.
            Event::Progress(_) => {}
            Event::PromptLogprobs(logprobs) => prompt_logprobs[prompt] = logprobs,
            Event::Embedding(vector) => embeddings[prompt] = vector,
            Event::Token { answer, token, text, logprob } => {
                if let Some(parser) = &mut parsers[first + answer] {
                    parser.token(&text, &mut parsed);
                    streamed.extend(parsed.drain(..).filter(|_| as_streamed));
                }
                let answer = &mut answers[first + answer];
                answer.text.push_str(&text);
                answer.tokens.push(token);
                answer.logprobs.extend(logprob);
            }
            Event::Noted { answer, unsealed } => answers[first + answer].receipt = plan.receipt(*unsealed),
            Event::Finished { answer, reason, stop_string, text } => {
                let ended = Parsed::end(parsers[first + answer].as_mut(), text);
                streamed.extend(ended.parts);
                let answer = &mut answers[first + answer];
                answer.text.push_str(&ended.text);
                answer.end = FinishInfo::of(plan, app, reason, stop_string);
            }
            Event::Done { usage, timings } => totals.add(app, plan, &usage, &timings),
            Event::Failed(error) => {
                let error = ApiError::from(error);
                outputs.answered(error.status().as_u16());
                return Err(error);
            }
        }
    }
    outputs.answered(200);
    if let Some(output_parser) = &plan.output_parser {
        for (answer, parser) in answers.iter_mut().zip(&parsers) {
            totals.add_thoughts(parser.as_ref());
            let parts = match as_streamed {
                true => std::mem::take(&mut streamed),
                false => output_parser.whole(&answer.text, parser.as_ref()),
            };
            answer.end.called(parts.iter().any(|part| matches!(part, AnswerPart::CallEnds { .. })));
            answer.parts = Some(parts);
        }
    }
    let (trace, charge) = outputs.into_rest();
    Ok(CollectedAnswer { answers, prompts, prompt_logprobs, embeddings, totals, trace, charge })
}
