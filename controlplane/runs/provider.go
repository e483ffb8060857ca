package runs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// authorizedTools of prp.md 6.5: no host tools yet. The digest is the one of
// the canonical JSON of an empty list.
type authorizedTools struct {
	Schema        string `json:"schema"`
	SchemaVersion int    `json:"schemaVersion"`
	CatalogDigest string `json:"catalogDigest"`
	Operations    []any  `json:"operations"`
}

func noTools() authorizedTools {
	sum := sha256.Sum256([]byte("[]"))
	return authorizedTools{
		Schema: "paperclip.runner.authorized-tools.v1", SchemaVersion: 1,
		CatalogDigest: "sha256:" + hex.EncodeToString(sum[:]), Operations: []any{},
	}
}

// commandProvider is the provider object of kind command (issue 2, item 4).
type commandProvider struct {
	Kind      string   `json:"kind"`
	Argv      []string `json:"argv"`
	Cwd       string   `json:"cwd"`
	EnvNames  []string `json:"envNames"`
	PTY       bool     `json:"pty"`
	TimeoutMs int64    `json:"timeoutMs"`
}

// scriptedProvider is the provider object of kind scripted.
type scriptedProvider struct {
	Kind   string          `json:"kind"`
	Script json.RawMessage `json:"script,omitempty"`
}

// codexProvider is the provider object of prp.md 6.5, every member present.
type codexProvider struct {
	Kind                string   `json:"kind"`
	Provider            string   `json:"provider"`
	Driver              string   `json:"driver"`
	ProviderVersion     string   `json:"providerVersion"`
	Command             string   `json:"command"`
	Args                []string `json:"args"`
	Cwd                 string   `json:"cwd"`
	Model               *string  `json:"model"`
	ApprovalPolicy      *string  `json:"approvalPolicy"`
	ExternallySandboxed bool     `json:"externallySandboxed"`
	Instructions        string   `json:"instructions"`
	CollaborationMode   string   `json:"collaborationMode"`
	// The next two keep Codex's own texts, as without us.
	IncludeCollaborationModeInstructions bool           `json:"includeCollaborationModeInstructions"`
	IncludeSkillInstructions             bool           `json:"includeSkillInstructions"`
	RuntimeContext                       map[string]any `json:"runtimeContext"`
}

// prepare is the payload of run.prepare.
func (c *checked) prepare(workspace string) (json.RawMessage, error) {
	return json.Marshal(struct {
		AuthorizedTools authorizedTools `json:"authorizedTools"`
		Provider        any             `json:"provider"`
	}{noTools(), c.provider(workspace)})
}

func (c *checked) provider(workspace string) any {
	req := c.req
	switch c.driver.Kind {
	case KindScripted:
		return scriptedProvider{Kind: KindScripted, Script: req.Script}
	case KindCodex:
		return c.codex(workspace)
	}
	return c.command(workspace)
}

func (c *checked) command(workspace string) commandProvider {
	p := commandProvider{
		Kind: KindCommand, Argv: slices.Concat(c.driver.Command, c.req.Argv), Cwd: workspace,
		EnvNames: c.envNames(), PTY: c.req.PTY,
	}
	if c.req.Limits != nil {
		p.TimeoutMs = c.req.Limits.TurnTimeMs
	}
	return p
}

// codex maps the permission mode to Codex's policy: with default its own
// stands (and what it asks is declined by the runner), deny asks for
// everything (and declines all), allow asks for nothing and has full access.
func (c *checked) codex(workspace string) codexProvider {
	p := codexProvider{
		Kind: KindCodex, Provider: KindCodex, Driver: "codex_app_server", ProviderVersion: "codex-app-server-v1",
		Command: "codex", Args: []string{"app-server"}, Cwd: workspace,
		CollaborationMode: "default", IncludeCollaborationModeInstructions: true, IncludeSkillInstructions: true,
		RuntimeContext: map[string]any{},
	}
	if cmd := c.driver.Command; len(cmd) > 0 {
		p.Command = cmd[0]
		if len(cmd) > 1 {
			p.Args = cmd[1:]
		}
	}
	policy := ""
	switch c.permission {
	case permissionDeny:
		policy = "untrusted"
	case permissionAllow:
		policy, p.ExternallySandboxed = "never", true
	}
	if policy != "" {
		p.ApprovalPolicy = &policy
	}
	return p
}

// envNames are the variables the provider gets besides the usual ones.
func (c *checked) envNames() []string {
	names := slices.Clone(c.req.Env)
	for name := range c.driver.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if names == nil {
		return []string{}
	}
	return names
}
