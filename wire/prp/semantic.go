package prp

import (
	"bowline/wire/canonjson"
)

// SemanticInput is the call of a host tool inside a semantic_tool.input or
// mcp_app.tool_input event.
type SemanticInput struct {
	CallID         string
	OperationID    string
	Input          canonjson.Value // any value, null included
	Digest         string          // as the runner said it
	IdempotencyKey canonjson.Value // string or null
	Correlation    canonjson.Value // exact object
	Content        canonjson.Value // exact object
}

// IsSemanticInput tells whether events of type t carry a call.
func IsSemanticInput(t string) bool {
	return t == "semantic_tool.input" || t == "mcp_app.tool_input"
}

// SemanticInputOf reads the call and checks step 5 of prp.md 10.2: phase, ids,
// a present input, a content object and a correlation that equals the identity.
// The digest is checked separately, because its failure is a fault and these
// are not.
func SemanticInputOf(e Event, id Identity) (SemanticInput, error) {
	t := e.Payload.Get("semantic_tool")
	fail := func(what string) (SemanticInput, error) {
		return SemanticInput{}, violation("%s: %s", e.Type, what)
	}
	if !t.IsObject() {
		return fail("semantic_tool is not an object")
	}
	in := SemanticInput{
		Input: t.Get("input"), Correlation: t.Get("correlation"), Content: t.Get("content"),
		IdempotencyKey: t.Get("idempotencyKey"),
	}
	var ok [2]bool
	in.CallID, ok[0] = t.Get("callId").AsString()
	in.OperationID, ok[1] = t.Get("operationId").AsString()
	switch {
	case t.Get("phase").Str() != "input":
		return fail("phase is not input")
	case ok != [2]bool{true, true}:
		return fail("callId or operationId is not a string")
	case !in.Input.Exists():
		return fail("input is missing")
	case !in.Content.IsObject():
		return fail("content is not an object")
	case in.Correlation.Get("runId").Str() != id.RunID,
		in.Correlation.Get("normalizedSessionId").Str() != id.NormalizedSessionID,
		in.Correlation.Get("turnId").Str() != id.TurnID,
		in.Correlation.Get("itemId").Str() != id.ItemID:
		return fail("correlation is not the session's identity")
	}
	in.Digest = in.Content.Get("digest").Str()
	return in, nil
}

// DigestMatches recomputes the digest of the input (7.4). False is the fault
// semantic_input_digest_mismatch.
func (in SemanticInput) DigestMatches() bool {
	return in.Digest == SemanticDigest(in.Input)
}
