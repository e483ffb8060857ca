package codex

import (
	"context"
	"encoding/json"

	"bowline/driver/jsonrpc"
)

// onRequest answers every request of Codex at once: an unanswered one holds
// its turn for ever. It runs on the reading goroutine.
func (s *session) onRequest(ctx context.Context, req *jsonrpc.Request) {
	var about notification
	if err := json.Unmarshal(req.Params, &about); err != nil {
		about = notification{} // answered all the same
	}
	var err error
	switch req.Method {
	case "item/commandExecution/requestApproval", "item/fileChange/requestApproval":
		decision := "decline" // the model is told, and the turn goes on
		if s.approve(req.Method, about) {
			decision = "accept"
		}
		err = req.Reply(ctx, object{"decision": decision})
	case "item/permissions/requestApproval":
		granted := json.RawMessage("{}")
		if s.approve(req.Method, about) {
			var asked struct {
				Permissions json.RawMessage `json:"permissions"`
			}
			if json.Unmarshal(req.Params, &asked) == nil && asked.Permissions != nil {
				granted = asked.Permissions
			}
		}
		err = req.Reply(ctx, object{"permissions": granted, "scope": "turn"})
	case "item/tool/requestUserInput":
		s.declined(req.Method, about)
		err = req.Reply(ctx, object{"answers": object{}})
	case "item/tool/call":
		s.declined(req.Method, about)
		err = req.Reply(ctx, object{"success": false, "contentItems": []object{{"type": "inputText", "text": "this tool is not available"}}})
	case "mcpServer/elicitation/request":
		s.declined(req.Method, about)
		err = req.Reply(ctx, object{"action": "decline", "content": nil})
	case "account/chatgptAuthTokens/refresh", "attestation/generate", "execCommandApproval", "applyPatchApproval":
		s.declined(req.Method, about)
		err = req.ReplyError(ctx, jsonrpc.CodeInvalidRequest, "not offered by this client")
	default:
		s.declined("", about) // its name is the provider's text
		err = req.ReplyError(ctx, jsonrpc.CodeMethodNotFound, "method not found")
	}
	if err != nil {
		s.host.Diagnostic("codex: request not answered: %v", err)
	}
}

// approve decides an approval by the permission mode.
func (s *session) approve(method string, about notification) bool {
	if s.rules.accept {
		s.diagnose("approval_accepted", object{"method": method, "itemId": safeID(about.ItemID), "providerTurnId": safeID(about.TurnID)})
		return true
	}
	s.declined(method, about)
	return false
}

func (s *session) declined(method string, about notification) {
	code := "approval_declined"
	if method == "" {
		code, method = "request_unknown", "unknown"
	}
	s.diagnose(code, object{"message": "codex asked (" + method + "); declined", "method": method, "itemId": safeID(about.ItemID), "providerTurnId": safeID(about.TurnID)})
}
