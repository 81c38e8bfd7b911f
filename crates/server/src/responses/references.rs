//! Items that an input only names, which are those of kept answers. Vercel's AI SDK sends names where an answer was to
//! be kept, and not what it got.

use std::collections::HashMap;

use serde_json::Value;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::Fields;

use super::Store;
use super::shapes::ITEM;

/// The input with the items themselves. None may be named twice: so an input is never larger than itself and what is
/// kept, however many names it has.
pub(super) fn resolved(mut input: Value, store: &Store, tenant: Option<Tenant>) -> Result<Value, ApiError> {
    let Value::Array(items) = &mut input else { return Ok(input) };
    let mut places = HashMap::new();
    for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| item["type"] == "item_reference") {
        let mut fields = Fields::nested(item.take(), format!("input[{at}]"), &ITEM)?;
        fields.string("type")?;
        let name = fields.name("id");
        let id = fields.text("id")?;
        fields.finish()?;
        if places.insert(id, at).is_some() {
            return Err(ApiError::bad_request("An item may be in an input once.").with_param(name));
        }
    }
    if places.is_empty() {
        return Ok(input);
    }
    for (at, item) in store.pop(tenant, &mut places) {
        items[at] = item;
    }
    match places.values().min() {
        None => Ok(input),
        Some(at) => Err(ApiError::unknown_item().with_param(format!("input[{at}].id"))),
    }
}
