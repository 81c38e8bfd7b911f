"""What Schemathesis checks here beside its own: a field that the document has is one that the server reads."""

import schemathesis


@schemathesis.check
def documented_fields_are_known(ctx, response, case):
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code != 400:
        return
    error = response.json().get("error")
    if not isinstance(error, dict) or error.get("code") != "unknown_parameter":
        return
    # Which kinds of items have which fields is said in words: an item's fields are those of all kinds.
    param = error.get("param") or ""
    assert "." in param or "[" in param, f"the document has '{param}', and the server does not know it"
