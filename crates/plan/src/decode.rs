//! Decode: one token of every running request per pass, and all weights are read for it.

use roofline::PassWork;

use crate::Deployment;

/// No batch is larger.
pub(crate) const MOST: usize = 1 << 20;

impl Deployment {
    /// Seconds of a step that carries `batch` requests, each of which sees `context` keys.
    pub fn step(&self, batch: usize, context: f64) -> f64 {
        self.checking(batch, 0, context)
    }

    /// What such a step asks of the machine.
    pub fn step_work(&self, batch: usize, context: f64) -> PassWork {
        self.demands.decode(1, batch, batch as f64 * context)
    }

    /// The smallest batch whose rows take longer to multiply with the weights than the weights take to read, by what is
    /// reached of both limits: from there on a larger batch makes no more tokens per second. `None` where there is
    /// none.
    ///
    /// Keys and values do not move it: attention is a pass of its own, whose time each request adds.
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

    /// The floor that nothing can beat of a step of `batch` requests with so many keys each: weights, keys and values
    /// once over the full bandwidth, or its operations at the peaks, whichever takes longer.
    pub fn decode_floor(&self, batch: usize, context: f64) -> f64 {
        self.floor(&self.step_work(batch, context), || self.step(batch, context))
    }

    /// What is worked out on paper: every weight that a token of one request needs, once over the full bandwidth, and
    /// no keys and values.
    pub fn decode_weights(&self) -> f64 {
        self.demands.bytes_of_pass(1.0) / self.peaks().bandwidth
    }
}
