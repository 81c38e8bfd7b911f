//! Decode: one token of every running request per pass, which reads all weights.

use roofline::PassWork;

use crate::Deployment;

pub(crate) const MOST: usize = 1 << 20;

impl Deployment {
    /// Seconds of a step with `batch` requests that each attend to `context` keys.
    pub fn step(&self, batch: usize, context: f64) -> f64 {
        self.checking(batch, 0, context)
    }

    /// Work of such a step.
    pub fn step_work(&self, batch: usize, context: f64) -> PassWork {
        self.demands.decode(1, batch, batch as f64 * context)
    }

    /// The smallest batch whose rows take longer to multiply with the weights than the weights take to read, at the reached
    /// shares of both limits: a larger batch gives no more tokens per second. `None` if there is none.
    ///
    /// Keys and values do not move it: attention is a separate pass, whose time each request adds to.
    pub fn knee(&self) -> Option<usize> {
        let reached = self.machine.reached(&self.demands);
        let row = (self.demands.shape.flops_per_token() + self.demands.shape.flops_per_logit_row()) / reached.matrix;
        let computes = |batch: usize| batch as f64 * row > self.demands.bytes_of_pass(batch as f64) / reached.bandwidth;
        let over = (0..).map(|power| 1 << power).take_while(|&batch| batch <= MOST).find(|&batch| computes(batch))?;
        let (mut below, mut above) = (over / 2, over);
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if computes(middle) { above = middle } else { below = middle }
        }
        Some(above)
    }

    /// Lower bound for a step of `batch` requests with `context` keys each: weights, keys and values once at full bandwidth,
    /// or its operations at the peaks, whichever takes longer.
    pub fn decode_floor(&self, batch: usize, context: f64) -> f64 {
        self.peaks().floor_seconds(&self.step_work(batch, context))
    }

    /// The back-of-the-envelope figure: every weight that a token of one request needs, once at full bandwidth, without
    /// keys and values.
    pub fn decode_weights(&self) -> f64 {
        self.demands.bytes_of_pass(1.0) / self.peaks().bandwidth
    }
}
