//! Memory for answers that are not read yet, charged before they are admitted.
//!
//! ```text
//! bytes that an answer may take until it is read --Quota--> Charge, given back when it is dropped
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use engine::quota::{Quota, QuotaExceeded};

use crate::auth::Tenant;
use crate::error::{ApiError, ApiResult};

/// What all answers together may take.
#[derive(Debug)]
pub struct AnswerMemory {
    quota: Mutex<Quota>,
    /// What the answers to one request may take: what one tenant can always have, if it waits.
    most: u64,
}

impl AnswerMemory {
    /// `is_shared`: several tenants may come.
    pub fn new(bytes: u64, is_shared: bool) -> Arc<AnswerMemory> {
        Arc::new(AnswerMemory { quota: Mutex::new(Quota::new(bytes, is_shared)), most: bytes / 2 })
    }

    /// Sets `bytes` aside for `tenant`.
    pub fn charge(self: &Arc<AnswerMemory>, tenant: u64, bytes: u64) -> ApiResult<Charge> {
        if bytes > self.most {
            return Err(ApiError::answer_too_large(bytes, self.most));
        }
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        quota.take(tenant, bytes).map_err(|no_room| match no_room {
            QuotaExceeded::Full => ApiError::overloaded(1),
            QuotaExceeded::TenantQueueFull => ApiError::answers_share_taken(1),
        })?;
        Ok(Charge { memory: self.clone(), tenant, bytes })
    }

    /// The same for an answer that is read again.
    pub fn charge_again(self: &Arc<AnswerMemory>, tenant: Option<&Tenant>, bytes: usize) -> ApiResult<Charge> {
        // As the engine numbers tenants.
        let number = tenant.and_then(|digest| digest.first_chunk()).map_or(0, |first| u64::from_le_bytes(*first));
        self.charge(number, bytes as u64)
    }
}

/// Memory set aside for one request's answers; dropping it gives it back.
#[derive(Debug)]
pub struct Charge {
    memory: Arc<AnswerMemory>,
    tenant: u64,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.quota.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.tenant, self.bytes);
    }
}
