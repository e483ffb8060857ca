package executor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/runnerd/redact"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/canonjson"
)

// Limits of run.prepare (prp.md 6.5).
const (
	toolsSchema     = "paperclip.runner.authorized-tools.v1"
	maxTools        = 256
	maxDescription  = 16 << 10  // bytes
	maxToolSchema   = 512 << 10 // bytes
	maxToolSet      = 768 << 10 // bytes
	maxCriteria     = 256
	maxRevisionLen  = 120 // characters
	maxCriterionLen = 240 // characters
)

// prepare checks a run.prepare payload and keeps it.
func (e *Executor) prepare(payload canonjson.Value) error {
	if err := checkTools(payload.Get("authorizedTools")); err != nil {
		return err
	}
	if err := checkContract(payload.Get("completionContract")); err != nil {
		return err
	}
	if e.current() != nil {
		return wire.Errorf(wire.CodeConflict, "a session is open: run.prepare comes before session.open")
	}
	if err := e.adoptProvider(payload); err != nil {
		return err
	}
	if err := e.jr.SetPrepare(payload.JSON()); err != nil {
		return err
	}
	if e.kind.StateFile {
		return e.jr.WriteProviderState(journal.ProviderPrepared)
	}
	return nil
}

// adoptProvider chooses the driver and its environment.
func (e *Executor) adoptProvider(payload canonjson.Value) error {
	p := payload.Get("provider")
	if !p.IsObject() {
		return wire.Errorf(wire.CodeInputInvalid, "provider is not an object").With("member", "provider")
	}
	name := p.Get("kind").Str()
	kind, ok := e.opt.Kinds[name]
	if !ok {
		return wire.Errorf(wire.CodeDriverUnknown, "provider.kind is not one of %s", strings.Join(e.kindNames(), ", ")).With("member", "provider.kind")
	}
	raw := json.RawMessage(p.JSON())
	if err := kind.Driver.Validate(raw); err != nil {
		return err
	}
	if cwd := p.Get("cwd").Str(); cwd != "" {
		if err := checkDir(cwd, "provider.cwd"); err != nil {
			return err
		}
	}
	if !slices.Contains(kind.Driver.Descriptor().PermissionModes, e.opt.Permission) {
		return wire.Errorf(wire.CodeNotAvailable, "permission mode %s is not available for %s", e.opt.Permission, name)
	}
	names := slices.Clone(e.opt.PassEnv)
	for _, n := range p.Get("envNames").Elements() {
		if e.opt.OnlyPassEnv && !slices.Contains(e.opt.PassEnv, n.Str()) {
			return wire.Errorf(wire.CodeEnvNotAllowed, "provider.envNames: a variable that this runner was not told to hand on").With("member", "provider.envNames")
		}
		names = append(names, n.Str())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kind, e.kindName, e.provider = kind, name, raw
	e.env = supervise.BaseEnv(e.opt.Environ, append(slices.Clone(names), kind.EnvNames...))
	e.redactor = redact.New(e.secrets(append(names, kind.SecretNames...))...)
	return nil
}

func (e *Executor) kindNames() []string {
	var list []string
	for name := range e.opt.Kinds {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// secrets are the values of the variables that are handed on.
func (e *Executor) secrets(names []string) []string {
	var values []string
	for _, kv := range e.opt.Environ {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(e.opt.PassEnv, name) || slices.Contains(names, name) {
			values = append(values, value)
		}
	}
	return values
}

// open opens the prepared provider, or takes it up again with resume.
func (e *Executor) open(ctx context.Context, resume json.RawMessage) error {
	e.mu.Lock()
	kind, name, provider, env := e.kind, e.kindName, e.provider, e.env
	e.mu.Unlock()
	if provider == nil {
		return wire.Errorf(wire.CodeConflict, "run.prepare comes before session.open")
	}
	if err := checkDir(e.opt.Workspace, "workspace"); err != nil {
		return err
	}
	if !kind.Driver.Descriptor().Capabilities.Resume {
		resume = nil
	}
	h := e.newHost()
	s, err := kind.Driver.Open(ctx, h, driver.Config{
		Provider: provider, Workspace: e.opt.Workspace, Env: slices.Clone(env),
		Permission: e.opt.Permission, Resume: resume,
	})
	if err != nil {
		h.cancel()
		return err
	}
	e.mu.Lock()
	e.session, e.host = s, h
	e.mu.Unlock()
	if e.opt.OnProvider != nil {
		e.opt.OnProvider(name, true)
	}
	return nil
}

func checkDir(path, field string) error {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return wire.Errorf(wire.CodeWorkspaceInvalid, "%s is not an existing directory", field).With("field", field)
	}
	return nil
}

// checkTools verifies the catalogue of host tools (prp.md 6.5). Absent is none.
func checkTools(v canonjson.Value) error {
	if !v.Exists() {
		return nil
	}
	bad := func(format string, args ...any) error {
		return wire.Errorf(wire.CodeInputInvalid, "authorizedTools: "+format, args...).With("member", "authorizedTools")
	}
	version, _ := v.Get("schemaVersion").SafeInt()
	operations := v.Get("operations")
	switch {
	case v.Get("schema").Str() != toolsSchema || version != 1:
		return bad("schema is not %s, version 1", toolsSchema)
	case !operations.IsArray():
		return bad("operations is not an array")
	case operations.Len() > maxTools:
		return bad("%d operations, the limit is %d", operations.Len(), maxTools)
	}
	seen := make(map[string]bool, operations.Len())
	for i, op := range operations.Elements() {
		id := op.Get("operationId").Str()
		switch {
		case id == "" || seen[id]:
			return bad("operation %d has no operationId of its own", i)
		case len(op.Get("description").Str()) > maxDescription:
			return bad("operation %d: description exceeds %d bytes", i, maxDescription)
		case len(op.Get("inputSchema").JSON()) > maxToolSchema || len(op.Get("responseSchema").JSON()) > maxToolSchema:
			return bad("operation %d: a schema exceeds %d bytes", i, maxToolSchema)
		}
		seen[id] = true
	}
	given, err := canonjson.CanonicalUnlimited(operations)
	if err != nil {
		return bad("a number is not finite")
	}
	if len(given) > maxToolSet {
		return bad("operations have %d bytes, the limit is %d bytes", len(given), maxToolSet)
	}
	sorted := slices.Clone(operations.Elements())
	slices.SortStableFunc(sorted, func(a, b canonjson.Value) int {
		return canonjson.CompareUTF16(a.Get("operationId").Str(), b.Get("operationId").Str())
	})
	inOrder, err := canonjson.CanonicalUnlimited(canonjson.ArrayValue(sorted...))
	if err != nil {
		return bad("a number is not finite")
	}
	// One older copy digests the operations in the given order.
	if d := v.Get("catalogDigest").Str(); d != digest(inOrder) && d != digest(given) {
		return bad("catalogDigest does not match the operations")
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// checkContract verifies the shape of a completion contract (prp.md 6.5).
func checkContract(v canonjson.Value) error {
	if !v.Exists() || v.IsNull() {
		return nil
	}
	bad := func(what string) error {
		return wire.Errorf(wire.CodeInputInvalid, "completionContract: %s", what).With("member", "completionContract")
	}
	revision := canonjson.CodePoints(v.Get("revision").Str())
	ids := v.Get("criterionIds")
	switch {
	case revision < 1 || revision > maxRevisionLen:
		return bad(fmt.Sprintf("revision is not 1 to %d characters", maxRevisionLen))
	case !ids.IsArray() || ids.Len() < 1 || ids.Len() > maxCriteria:
		return bad(fmt.Sprintf("criterionIds is not 1 to %d ids", maxCriteria))
	}
	for _, id := range ids.Elements() {
		if n := canonjson.CodePoints(id.Str()); n < 1 || n > maxCriterionLen {
			return bad(fmt.Sprintf("a criterion id is not 1 to %d characters", maxCriterionLen))
		}
	}
	return nil
}
