package prp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"bowline/wire"
	"bowline/wire/canonjson"
)

// Command types (prp.md 6.1).
const (
	CommandRunPrepare            = "run.prepare"
	CommandRunAttach             = "run.attach"
	CommandSessionOpen           = "session.open"
	CommandTurnStart             = "turn.start"
	CommandTurnSteer             = "turn.steer"
	CommandTurnInterrupt         = "turn.interrupt"
	CommandTurnStop              = "turn.stop"
	CommandRequestResolve        = "request.resolve"
	CommandInteractionReceipt    = "interaction.receipt"
	CommandSemanticToolResult    = "semantic_tool.result"
	CommandSessionSnapshot       = "session.snapshot"
	CommandSessionGoalGet        = "session.goal.get"
	CommandSessionGoalSet        = "session.goal.set"
	CommandSessionGoalClear      = "session.goal.clear"
	CommandSessionClose          = "session.close"
	CommandSessionBudgetIncrease = "session.budget.increase"
	CommandSessionDestroy        = "session.destroy"
	CommandRunCancel             = "run.cancel"
	CommandRunnerDrain           = "runner.drain"
	CommandRunnerSuspend         = "runner.suspend"
	CommandRunnerShutdown        = "runner.shutdown"
)

// goalCommandPrefix marks the commands that exist only in command schema v2.
const goalCommandPrefix = "session.goal."

// Schema names of a command record (5.4).
const (
	CommandSchemaV1 = "paperclip.prp.command.v1"
	CommandSchemaV2 = "paperclip.prp.command.v2"
)

// CommandTypes lists all 21.
func CommandTypes() []string {
	return []string{
		CommandRunPrepare, CommandRunAttach, CommandSessionOpen, CommandTurnStart, CommandTurnSteer,
		CommandTurnInterrupt, CommandTurnStop, CommandRequestResolve, CommandInteractionReceipt,
		CommandSemanticToolResult, CommandSessionSnapshot, CommandSessionGoalGet, CommandSessionGoalSet,
		CommandSessionGoalClear, CommandSessionClose, CommandSessionBudgetIncrease, CommandSessionDestroy,
		CommandRunCancel, CommandRunnerDrain, CommandRunnerSuspend, CommandRunnerShutdown,
	}
}

// IsCommandType tells whether t is one of the vocabulary.
func IsCommandType(t string) bool { return slices.Contains(CommandTypes(), t) }

// CommandSchema is the schema name of a record of type t. It depends on the
// type alone, not on the version of the connection (0.2 no. 1).
func CommandSchema(t string) string {
	if strings.HasPrefix(t, goalCommandPrefix) {
		return CommandSchemaV2
	}
	return CommandSchemaV1
}

// IsTerminalCommand tells whether t ends the runner's life: its result is
// acknowledged, and nothing is sent after it on that connection (5.4).
func IsTerminalCommand(t string) bool {
	return t == CommandRunnerSuspend || t == CommandRunnerShutdown
}

// Statuses of a command (5.4). Pending is the journal's own and never sent.
const (
	StatusPending       = "pending"
	StatusCompleted     = "completed"
	StatusFailed        = "failed"
	StatusRejected      = "rejected"
	StatusIndeterminate = "indeterminate"
)

// IsResultStatus tells whether s may stand in a command_result.
func IsResultStatus(s string) bool {
	return s == StatusCompleted || s == StatusFailed || s == StatusRejected || s == StatusIndeterminate
}

// Command is a command record without status and result: what is sent.
type Command struct {
	CommandID     string
	ControllerSeq int64 // from 1, without gaps
	Type          string
	IssuedAt      string          // ISO time with milliseconds
	Payload       canonjson.Value // an object
	// DeadlineAt and Precondition are known to the schema and never set by an
	// authority of this kind; Undefined when absent.
	DeadlineAt   canonjson.Value
	Precondition canonjson.Value
}

// Value is the record as it is sent.
func (c Command) Value() canonjson.Value {
	return canonjson.ObjectValue(
		member("schema", canonjson.StringValue(CommandSchema(c.Type))),
		member("commandId", canonjson.StringValue(c.CommandID)),
		member("controllerSeq", canonjson.IntValue(c.ControllerSeq)),
		member("type", canonjson.StringValue(c.Type)),
		member("issuedAt", canonjson.StringValue(c.IssuedAt)),
		member("deadlineAt", c.DeadlineAt),
		member("precondition", c.Precondition),
		member("payload", c.Payload),
	)
}

// Record is the record as an authority stores it; result is Undefined or null
// while there is none, else the whole command_result payload.
func (c Command) Record(status string, result canonjson.Value) canonjson.Value {
	if !result.Exists() {
		result = canonjson.NullValue()
	}
	v := c.Value()
	v.Set("status", canonjson.StringValue(status))
	v.Set("result", result)
	return v
}

// CheckSize refuses a command whose stored record is beyond
// [MaxQueuedCommandBytes], with code command_too_large.
func (c Command) CheckSize() error {
	size := len(c.Record(StatusPending, canonjson.Value{}).JSON())
	if size > MaxQueuedCommandBytes {
		return wire.Errorf(wire.CodeCommandTooLarge, "command of %d bytes exceeds the limit of %d bytes", size, MaxQueuedCommandBytes).
			With("limit", MaxQueuedCommandBytes).With("size", size)
	}
	return nil
}

// Fingerprint is the lower-case hex SHA-256 by which a runner tells a repeated
// command from a changed one (9.7): canonical JSON of the record with the two
// optional members present as null. It fails only for numbers that are not
// finite.
func (c Command) Fingerprint() (string, error) {
	for _, optional := range []*canonjson.Value{&c.DeadlineAt, &c.Precondition} {
		if !optional.Exists() {
			*optional = canonjson.NullValue()
		}
	}
	return hexDigest(c.Value())
}

// CommandOf reads a command record on the runner. Members it does not know are
// dropped, as the existing runner does.
func CommandOf(v canonjson.Value) (Command, error) {
	fail := func(format string, args ...any) (Command, error) {
		return Command{}, violation("command: "+format, args...)
	}
	if !v.IsObject() {
		return fail("not an object")
	}
	c := Command{
		CommandID: v.Get("commandId").Str(), Type: v.Get("type").Str(), IssuedAt: v.Get("issuedAt").Str(),
		Payload: v.Get("payload"), DeadlineAt: v.Get("deadlineAt"), Precondition: v.Get("precondition"),
	}
	var ok bool
	if c.ControllerSeq, ok = v.Get("controllerSeq").SafeInt(); !ok || c.ControllerSeq < 1 {
		return fail("controllerSeq is not a safe integer of at least 1")
	}
	switch {
	case !IsStableID(c.CommandID, MaxShortIDLen):
		return fail("commandId is not a stable id of at most %d characters", MaxShortIDLen)
	case !IsCommandType(c.Type):
		return fail("unknown type")
	case v.Get("schema").Str() != CommandSchema(c.Type):
		return fail("schema is not the one of its type")
	case !isDateTime(c.IssuedAt):
		return fail("issuedAt is not a date-time")
	case !c.Payload.IsObject():
		return fail("payload is not an object")
	case c.Precondition.Exists() && !c.Precondition.IsNull() && !c.Precondition.IsObject():
		return fail("precondition is not an object")
	}
	if d := c.DeadlineAt; d.Exists() && !d.IsNull() && (len(d.Str()) > 64 || !isDateTime(d.Str())) {
		return fail("deadlineAt is not a date-time")
	}
	return c, nil
}

// CommandIDOf is the id of a command whose caller gave none (5.4).
func CommandIDOf(controllerSeq int64) string { return fmt.Sprintf("command_prp_%08d", controllerSeq) }

// ToolCommandID is the id of the semantic_tool.result command of a call (6.4).
func ToolCommandID(runID, callID string) string {
	sum := sha256.Sum256([]byte(runID + "\x00" + callID))
	return "command_tool_" + hex.EncodeToString(sum[:16])
}

// AttachCommandID is the id of the run.attach command of a warm continuation (6.4).
func AttachCommandID(priorRunID, newRunID, newTurnID string) string {
	sum := sha256.Sum256([]byte(priorRunID + ":" + newRunID + ":" + newTurnID))
	return "command_attach_" + hex.EncodeToString(sum[:16])
}

// SteerCommandID is the id of a turn.steer command (6.4).
func SteerCommandID(turnID, correlationID string) string {
	sum := sha256.Sum256([]byte(turnID + ":" + correlationID))
	return "command_steer_" + hex.EncodeToString(sum[:16])
}

// CommandResult is command_result.payload. Whole is the exact object: it is
// what the journal keeps and what a repetition is compared with.
type CommandResult struct {
	CommandID     string
	ControllerSeq int64
	CommandType   string
	Status        string
	Result        canonjson.Value
	Whole         canonjson.Value
}

// Value is the payload as it is sent.
func (r CommandResult) Value() canonjson.Value {
	result := r.Result
	if !result.Exists() {
		result = canonjson.NullValue()
	}
	return canonjson.ObjectValue(
		member("commandId", canonjson.StringValue(r.CommandID)),
		member("controllerSeq", canonjson.IntValue(r.ControllerSeq)),
		member("commandType", canonjson.StringValue(r.CommandType)),
		member("status", canonjson.StringValue(r.Status)),
		member("result", result),
	)
}

// CommandResultOf reads command_result.payload on the authority. Only the id
// and the status are required: sequence and type are not compared there (5.5)
// and are 0 and "" when they are missing.
func CommandResultOf(payload canonjson.Value) (CommandResult, error) {
	if !payload.IsObject() {
		return CommandResult{}, violation("command_result: payload is not an object")
	}
	r := CommandResult{
		CommandType: payload.Get("commandType").Str(),
		Status:      payload.Get("status").Str(),
		Result:      payload.Get("result"),
		Whole:       payload,
	}
	var ok bool
	if r.CommandID, ok = payload.Get("commandId").AsString(); !ok {
		return CommandResult{}, violation("command_result: commandId is not a string")
	}
	if !IsResultStatus(r.Status) {
		return CommandResult{}, violation("command_result: status is not a result status")
	}
	r.ControllerSeq, _ = payload.Get("controllerSeq").SafeInt()
	return r, nil
}

// EncodeCommandResultAck builds command_result_ack.payload (5.2).
func EncodeCommandResultAck(r CommandResult) []byte {
	return canonjson.ObjectValue(
		member("commandId", canonjson.StringValue(r.CommandID)),
		member("commandType", canonjson.StringValue(r.CommandType)),
		member("controllerSeq", canonjson.IntValue(r.ControllerSeq)),
		member("status", canonjson.StringValue(r.Status)),
	).JSON()
}

// CommandResultAckEnvelopeID is the envelopeId of command_result_ack.
func CommandResultAckEnvelopeID(controllerSeq int64) string {
	return fmt.Sprintf("command_result_ack_%d", controllerSeq)
}

// CommandResultAckOf reads command_result_ack.payload on the runner and
// compares it with the result it sent.
func CommandResultAckOf(payload canonjson.Value, sent CommandResult) error {
	seq, ok := payload.Get("controllerSeq").SafeInt()
	if !ok || seq != sent.ControllerSeq || payload.Get("commandId").Str() != sent.CommandID ||
		payload.Get("commandType").Str() != sent.CommandType || payload.Get("status").Str() != sent.Status {
		return violation("command_result_ack: not the result that was sent")
	}
	return nil
}
