//! What an encoder with a classifier says of a text or of a pair of texts: logits of its classes, and scores of these.

use model::Classifier;
use transport::error::ApiError;

use crate::app::App;

/// The classifier of the model that is served, if it has one.
pub(super) fn classifier(app: &App) -> Option<&Classifier> {
    app.engine.model().config.encoder.as_ref()?.classifier.as_ref()
}

/// Why a text has no vector.
pub(super) fn no_vectors() -> ApiError {
    let message = "this model judges texts and gives no vectors: use /v1/rerank, /v1/score, /classify or /pooling";
    ApiError::bad_request(message).with_param("model")
}

/// Why pairs are not scored.
pub(super) fn many_classes(classifier: &Classifier) -> ApiError {
    let message = format!(
        "this model has {} classes, and a score has one: use /classify for the share of each",
        classifier.labels.len()
    );
    ApiError::bad_request(message).with_param("model")
}

/// A classifier that says how well two texts go together has one class.
pub(super) fn reranker(app: &App) -> Result<Option<&Classifier>, ApiError> {
    match classifier(app) {
        Some(classifier) if classifier.labels.len() != 1 => Err(many_classes(classifier)),
        found => Ok(found),
    }
}

/// The score of a pair, of its only logit: between 0 and 1, unless the model's own setting is to leave it as it is.
pub(super) fn score(classifier: &Classifier, logits: &[f32]) -> f64 {
    let logit = f64::from(logits[0]);
    if classifier.is_raw { logit } else { sigmoid(logit) }
}

/// The share of each class.
pub(super) fn shares(classifier: &Classifier, logits: &[f32]) -> Vec<f64> {
    let logits = logits.iter().map(|&logit| f64::from(logit));
    if classifier.sigmoid {
        return logits.map(sigmoid).collect();
    }
    let most = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.map(|logit| libm::exp(logit - most)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-logit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::config::ClassifierForm;

    #[test]
    fn logits_become_scores() {
        let of = |labels: usize, sigmoid, is_raw| Classifier {
            labels: (0..labels).map(|label| label.to_string()).collect(),
            form: ClassifierForm::Pooler,
            sigmoid,
            is_raw,
        };
        assert_eq!(score(&of(1, true, false), &[0.0]), 0.5);
        assert_eq!(score(&of(1, true, true), &[-3.5]), -3.5);
        assert_eq!(shares(&of(2, false, false), &[1000.0, 1000.0]), [0.5, 0.5]);
        assert_eq!(shares(&of(2, true, false), &[0.0, 0.0]), [0.5, 0.5]);
    }
}
