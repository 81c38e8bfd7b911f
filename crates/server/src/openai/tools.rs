//! Tools of a chat: what may be called, and whether something must be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dialect::{Choice, Dialect, Tool};
use engine::{Rule, RuleError, check_rule};
use serde_json::{Value, json};
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};
use transport::json::shortened;

use crate::answers::Adjustments;
use crate::conversation::{ToolChoice, definition};
use crate::openai::shapes;

/// Most tools of a request. Agents bring some tens.
const MAX_TOOLS: usize = 512;
/// Bytes of all schemas that a grammar of calls follows; with its own text that is below what a grammar may have.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Longest name of a tool, in bytes.
const MAX_NAME_BYTES: usize = 128;

const FUNCTION: &str = "function";

/// What may be called.
#[derive(Default)]
pub(crate) struct Offer {
    pub(crate) tools: Vec<Tool>,
    /// Where the schema of each of them stands, by its name.
    pub(crate) places: BTreeMap<String, String>,
    /// As the template reads them.
    pub(crate) definitions: Vec<Value>,
    pub(crate) choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
    /// Kind and name of each tool that came; the model is told of the functions alone, and others have no name.
    pub(crate) kinds: Vec<(&'static str, String)>,
}

impl Offer {
    /// Adds a tool; `field`: where its name stands, `place`: where its schema does.
    pub(crate) fn add(&mut self, tool: Tool, description: Option<&str>, field: &str, place: String) -> ApiResult<()> {
        let fit = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if tool.name.is_empty() || tool.name.len() > MAX_NAME_BYTES || !tool.name.chars().all(fit) {
            let message = format!("'{field}' must be 1 to {MAX_NAME_BYTES} letters, digits or one of '_-.:/'.");
            return Err(ApiError::bad_request(message).with_param(field));
        }
        if self.tools.len() >= MAX_TOOLS {
            return Err(ApiError::bad_request(format!("At most {MAX_TOOLS} tools are taken.")).with_param("tools"));
        }
        check_properties(&tool.parameters, &place)?;
        // Templates ask whether a name is in it.
        if matches!(tool.parameters.get("required"), Some(Value::Bool(_) | Value::Number(_))) {
            return Err(ApiError::of_schema(&format!("{place}.required"), &"it must be a list of names"));
        }
        self.places.entry(tool.name.clone()).or_insert(place);
        self.kinds.push((FUNCTION, tool.name.clone()));
        self.definitions.push(definition(&tool.name, description, &tool.parameters));
        self.tools.push(tool);
        Ok(())
    }

    /// Every tool has a name of its own, and what must be called is there.
    pub(crate) fn check(&self) -> ApiResult<()> {
        let mut names = BTreeSet::new();
        if let Some(twice) = self.tools.iter().find(|tool| !names.insert(tool.name.as_str())) {
            let message = format!("There are two tools of the name '{}'.", twice.name);
            return Err(ApiError::bad_request(message).with_param("tools"));
        }
        match &self.choice {
            ToolChoice::Required if self.tools.is_empty() => {
                let message = "'tool_choice' wants a call, and there are no 'tools'.";
                Err(ApiError::bad_request(message).with_param("tool_choice"))
            }
            ToolChoice::Named(name) if !names.contains(name.as_str()) => {
                let message = "'tool_choice' names a tool that is not among 'tools'.";
                Err(ApiError::bad_request(message).with_param("tool_choice"))
            }
            _ => Ok(()),
        }
    }

    /// Makes schemas that are to be followed into ones that compile, each by itself: what is wrong with one tool's is
    /// no fault of the others.
    pub(crate) fn fitted(mut self, dialect: &Dialect, adjustments: &mut Adjustments) -> ApiResult<Offer> {
        let is_followed = |tool: &Tool| match &self.choice {
            ToolChoice::Auto => tool.strict,
            ToolChoice::Never => false,
            ToolChoice::Required => true,
            ToolChoice::Named(name) => tool.name == *name,
        };
        let mut sizes = Vec::new();
        for (at, tool) in self.tools.iter_mut().enumerate().filter(|(_, tool)| is_followed(tool)) {
            let place = self.places.get(&tool.name).map(String::as_str).unwrap_or_default();
            tool.parameters = adjustments.fit(&tool.parameters, place, tool.strict)?;
            adjustments.leave_open(dialect.open_places(tool), place, tool.strict)?;
            match check_calls(dialect, tool) {
                Err(problem) if tool.strict => return Err(ApiError::of_schema(place, &problem)),
                Err(_) => leave_open(tool, place, adjustments),
                Ok(()) => {}
            }
            sizes.push((tool.parameters.to_string().len(), at));
        }
        // All of them are one grammar. What is too much for it is left open, the largest first.
        let mut all: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
        sizes.sort_unstable();
        while all > MAX_SCHEMA_BYTES
            && let Some((bytes, at)) = sizes.pop()
        {
            let tool = &mut self.tools[at];
            if !tool.strict {
                all -= bytes;
                leave_open(tool, self.places.get(&tool.name).map(String::as_str).unwrap_or_default(), adjustments);
            }
        }
        Ok(self)
    }

    /// The tools that the model is told of: none if none may be called.
    pub(crate) fn told(self) -> (Arc<[Tool]>, Vec<Value>, ToolChoice, bool) {
        let Offer { tools, definitions, choice, parallel, .. } = self;
        match choice {
            ToolChoice::Never => (Arc::default(), Vec::new(), choice, parallel),
            choice => (tools.into(), definitions, choice, parallel),
        }
    }
}

/// Leaves a tool's arguments open, and says so.
fn leave_open(tool: &mut Tool, place: &str, adjustments: &mut Adjustments) {
    tool.parameters = json!({"type": "object"});
    adjustments.hints.push(place.to_owned());
}

/// Whether the grammar of a tool's calls compiles. Its schema does.
fn check_calls(dialect: &Dialect, tool: &Tool) -> Result<(), RuleError> {
    let written = || dialect.grammar(std::slice::from_ref(tool), Choice::Required, false, "");
    let text = (!dialect.calls_are_json()).then(written).flatten();
    text.map_or(Ok(()), |text| check_rule(&Rule::Lark(text)))
}

/// Templates go through the properties of a schema, also of one that is only advice. What else is wrong in it is left to
/// those that follow it.
fn check_properties(schema: &Value, place: &str) -> ApiResult<()> {
    let place = format!("{place}.properties");
    match schema.get("properties") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(all)) => {
            all.iter().try_for_each(|(name, schema)| check_properties(schema, &format!("{place}.{}", shortened(name))))
        }
        Some(_) => Err(ApiError::of_schema(&place, &"it must be an object of schemas")),
    }
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn read(fields: &mut Fields) -> ApiResult<Offer> {
    let mut offer = Offer { parallel: fields.boolean("parallel_tool_calls")?.unwrap_or(true), ..Offer::default() };
    for mut tool in fields.objects("tools")? {
        tool.string("type")?;
        let mut function = tool.inner("function")?;
        // Some clients say it here, OpenAI's inside.
        let outer = tool.boolean("strict")?;
        tool.finish()?;
        function_into(&mut function, outer, &mut offer)?;
        function.finish()?;
    }
    offer.choice = choice(fields, &mut offer)?;
    offer.check()?;
    Ok(offer)
}

/// Reads the fields of a function: those of OpenAI's two APIs have the same names.
pub(crate) fn function_into(function: &mut Fields, strict: Option<bool>, offer: &mut Offer) -> ApiResult<()> {
    let [field, place] = ["name", "parameters"].map(|field| function.name(field));
    let name = function.text("name")?;
    let description = function.string("description")?;
    let strict = function.boolean("strict")?.or(strict).unwrap_or(false);
    let parameters = match function.map("parameters")? {
        None => json!({"type": "object", "properties": {}}),
        Some(schema) => schema.into(),
    };
    offer.add(Tool { name, parameters, strict }, description.as_deref(), &field, place)
}

fn choice(fields: &mut Fields, offer: &mut Offer) -> ApiResult<ToolChoice> {
    let expected = "'none', 'auto', 'required' or a function by its name";
    match fields.take("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => by_word(&word).ok_or_else(|| wrong_type("tool_choice", expected)),
        Some(object) => {
            let mut named = Fields::nested(object, "tool_choice".to_owned(), &shapes::CHOSEN)?;
            let choice = match named.text("type")?.as_str() {
                "function" => {
                    let mut function = named.inner("function")?;
                    let name = function.text("name")?;
                    function.finish()?;
                    ToolChoice::Named(name)
                }
                _ => {
                    let mut allowed = named.inner("allowed_tools")?;
                    let choice = only(&mut allowed, offer)?;
                    allowed.finish()?;
                    choice
                }
            };
            named.finish()?;
            Ok(choice)
        }
    }
}

pub(crate) fn by_word(word: &str) -> Option<ToolChoice> {
    match word {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::Never),
        "required" | "any" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// OpenAI's `allowed_tools`: a choice among some of the tools. The model is told of all, so that its prompt stays; of a
/// tool that is set aside nothing is to be chosen.
pub(crate) fn only(allowed: &mut Fields, offer: &mut Offer) -> ApiResult<ToolChoice> {
    let mode = allowed.string("mode")?;
    let choice = match mode.as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => return Err(wrong_type(allowed.name("mode"), "'auto' or 'required'")),
    };
    let mut names = BTreeSet::new();
    for mut tool in allowed.objects("tools")? {
        let (kind_name, kind) = (tool.name("type"), tool.string("type")?.unwrap_or_else(|| FUNCTION.to_owned()));
        if kind != FUNCTION && !offer.kinds.iter().any(|(there, _)| *there == kind) {
            return Err(wrong_type(kind_name, "'function', or the kind of one of 'tools'"));
        }
        if kind != FUNCTION {
            names.insert(String::new());
            continue;
        }
        let mut function = tool.object("function")?;
        let named = function.as_mut().unwrap_or(&mut tool);
        let (field, name) = (named.name("name"), named.text("name")?);
        if !offer.kinds.contains(&(FUNCTION, name.clone())) {
            let message = format!("'{field}' names a tool that is not among 'tools'.");
            return Err(ApiError::bad_request(message).with_param(field));
        }
        names.insert(name);
        tool.finish()?;
    }
    offer.tools.retain(|tool| names.contains(&tool.name));
    match (offer.tools.is_empty(), names.is_empty(), &choice) {
        (false, ..) => Ok(choice),
        (true, false, ToolChoice::Auto) => Ok(ToolChoice::Never),
        _ => Err(ApiError::bad_request("'tool_choice' allows none of the 'tools'.").with_param("tool_choice")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place that is blamed; `None`: it is taken.
    fn blamed(body: Value) -> Option<String> {
        let mut fields = Fields::of(body, &shapes::CHAT).unwrap();
        read(&mut fields).err().map(|error| error.param().unwrap_or_default().to_owned())
    }

    #[test]
    fn properties_that_are_none_are_blamed_on_the_schema_and_not_on_the_template() {
        for (schema, place) in [
            (json!({"type": 5, "properties": 3}), ".properties"),
            (json!({"properties": "x"}), ".properties"),
            (json!({"properties": {"a": {}}, "required": true}), ".required"),
            (json!({"required": 5}), ".required"),
            (json!({"properties": {"a": {"properties": []}}}), ".properties.a.properties"),
        ] {
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
            let place = format!("tools[0].function.parameters{place}");
            assert_eq!(blamed(json!({"messages": [], "tools": [tool]})), Some(place), "{schema}");
        }
        let advice = json!({"old": {"required": true}, "a": true, "b": {"type": "strange"}, "c": "a city", "properties": {"properties": null}});
        let good = json!({"properties": advice});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": good}});
        assert_eq!(blamed(json!({"messages": [], "tools": [tool]})), None);
    }

    #[test]
    fn what_is_allowed_is_a_function_that_there_is() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let at = "tool_choice.allowed_tools.tools[1]";
        for (second, place) in [
            (json!({"type": "function", "function": {"name": "f"}}), None),
            (json!({"name": "f"}), None),
            (json!({"type": "mcp", "name": "f"}), Some(format!("{at}.type"))),
            (json!({"type": "function", "function": {"name": "g"}}), Some(format!("{at}.function.name"))),
            (json!({"type": "function", "name": "g"}), Some(format!("{at}.name"))),
            (json!({"type": "function"}), Some(format!("{at}.name"))),
            (json!({"type": "mcp", "server_label": "docs"}), Some(format!("{at}.type"))),
        ] {
            let allowed = json!({"mode": "auto", "tools": [{"type": "function", "name": "f"}, second]});
            let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
            let body = json!({"messages": [], "tools": tools, "tool_choice": choice});
            assert_eq!(blamed(body), place, "{second}");
        }
    }
}
