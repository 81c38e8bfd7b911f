//! Settings of speculative decoding: which drafters, and within which bounds. How many drafts are checked is decided
//! for each step by the scheduler; nothing here changes an answer.

use kernels::WeightClass;

/// Whether next tokens are drafted, and by which drafters.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Speculation {
    /// They are not.
    #[default]
    Off,
    /// They are.
    By(Drafters),
}

impl Speculation {
    /// By what needs no second model: the texts of the request itself, its prediction and earlier answers.
    pub fn auto() -> Speculation {
        Speculation::By(Drafters::default())
    }

    /// The drafters, if speculation is on.
    pub fn drafters(&self) -> Option<&Drafters> {
        match self {
            Speculation::Off => None,
            Speculation::By(drafters) => Some(drafters),
        }
    }
}

/// The drafters of an engine. Several work side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafters {
    /// Drafts for one sequence in one step at most; from 1 to [`Drafters::MAX_DRAFTS`].
    pub max_drafts: usize,
    /// From texts that are there already.
    pub lookup: Option<LookupOptions>,
    /// From something that was trained.
    pub learned: Option<LearnedDrafter>,
    /// For measuring alone: a repeated request with the same seed is drafted right with this chance, 0 to 1, at each
    /// place.
    pub rehearsed: Option<f64>,
}

impl Drafters {
    /// More in one step would not be checked.
    pub const MAX_DRAFTS: usize = 32;
}

impl Default for Drafters {
    fn default() -> Drafters {
        Drafters { max_drafts: 16, lookup: Some(LookupOptions::default()), learned: None, rehearsed: None }
    }
}

/// Bounds on drafts from texts: prompt and answer of a request and its prediction, and earlier answers.
#[derive(Clone, Debug, PartialEq)]
pub struct LookupOptions {
    /// The number of last tokens that must have occurred before; from 1 to [`LookupOptions::MOST_MATCH`]. In a
    /// prediction two are enough.
    pub least_match: usize,
    /// Tokens that are compared at most, from `least_match` on to [`LookupOptions::MOST_MATCH`].
    pub most_match: usize,
    /// Tokens that match and drafts together at most; more than `least_match`.
    pub most_depth: usize,
    /// Drafts for each token that matches at most.
    pub drafts_per_match: f64,
    /// What followed is drafted as long as at least this share of the matching places continues that way. Of a
    /// prediction there is one.
    pub least_share: f64,
    /// Earlier answers that are remembered at most; 0: none.
    pub most_answers: usize,
}

impl LookupOptions {
    /// More tokens are not compared: so long a match is as sure as a longer one.
    pub const MOST_MATCH: usize = 32;
    /// More are not remembered, whatever their length.
    pub const MOST_ANSWERS: usize = 1 << 20;
    /// Match and drafts, both at their most.
    pub const MOST_DEPTH: usize = LookupOptions::MOST_MATCH + Drafters::MAX_DRAFTS;
}

/// No bound beside those that there are anyway: the scheduler learns which drafts are accepted.
impl Default for LookupOptions {
    fn default() -> LookupOptions {
        LookupOptions {
            least_match: 3,
            most_match: LookupOptions::MOST_MATCH,
            most_depth: LookupOptions::MOST_DEPTH,
            drafts_per_match: f64::INFINITY,
            least_share: 0.0,
            most_answers: 10_000,
        }
    }
}

/// A drafter with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedDrafter {
    /// What it is.
    pub method: DraftMethod,
    /// A directory, a file or a hub id, as a model is named; `None`: it is in the target's own files.
    pub model: Option<String>,
    /// Precision of a draft model's weights in memory; `None`: the target's. Heads and layers are small, and bf16.
    pub weights: Option<WeightClass>,
}

/// Kinds of trained drafters, as vLLM names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// A smaller model of the same vocabulary.
    DraftModel,
    /// Heads on the last hidden row, one for each place.
    Medusa,
    /// A decoder layer over rows of three layers.
    Eagle3,
    /// The checkpoint's own layer for the token after the next.
    Mtp,
}

impl DraftMethod {
    /// All of them.
    pub const ALL: [DraftMethod; 4] =
        [DraftMethod::DraftModel, DraftMethod::Medusa, DraftMethod::Eagle3, DraftMethod::Mtp];

    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            DraftMethod::DraftModel => "draft_model",
            DraftMethod::Medusa => "medusa",
            DraftMethod::Eagle3 => "eagle3",
            DraftMethod::Mtp => "mtp",
        }
    }
}
