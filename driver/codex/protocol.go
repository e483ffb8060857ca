package codex

import "encoding/json"

// The parts of the app-server protocol this driver reads and writes. Members
// that are not here are ignored: the schema moves weekly.

// Methods we call.
const (
	methodInitialize   = "initialize"
	methodInitialized  = "initialized"
	methodThreadStart  = "thread/start"
	methodThreadResume = "thread/resume"
	methodThreadRead   = "thread/read"
	methodTurnStart    = "turn/start"
	methodTurnSteer    = "turn/steer"
	methodInterrupt    = "turn/interrupt"
	methodClean        = "thread/backgroundTerminals/clean"
)

type initializeParams struct {
	ClientInfo   clientInfo   `json:"clientInfo"`
	Capabilities capabilities `json:"capabilities"`
}

type clientInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

type capabilities struct {
	ExperimentalAPI bool `json:"experimentalApi"`
}

type threadParams struct {
	ThreadID              string         `json:"threadId,omitempty"`
	ExcludeTurns          bool           `json:"excludeTurns,omitempty"`
	Cwd                   string         `json:"cwd"`
	Model                 string         `json:"model,omitempty"`
	ApprovalPolicy        string         `json:"approvalPolicy,omitempty"`
	Sandbox               string         `json:"sandbox,omitempty"`
	DeveloperInstructions string         `json:"developerInstructions,omitempty"`
	Config                map[string]any `json:"config,omitempty"`
}

type threadResult struct {
	Thread         thread          `json:"thread"`
	Model          string          `json:"model"`
	ApprovalPolicy json.RawMessage `json:"approvalPolicy"`
	Sandbox        struct {
		Type string `json:"type"`
	} `json:"sandbox"`
}

type thread struct {
	ID        string `json:"id"`
	SessionID string `json:"sessionId"`
	Status    struct {
		Type string `json:"type"`
	} `json:"status"`
}

type threadRef struct {
	ThreadID string `json:"threadId"`
	TurnID   string `json:"turnId,omitempty"`
}

type userInput struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type turnParams struct {
	ThreadID          string             `json:"threadId"`
	ExpectedTurnID    string             `json:"expectedTurnId,omitempty"`
	Input             []userInput        `json:"input"`
	CollaborationMode *collaborationMode `json:"collaborationMode,omitempty"`
}

type collaborationMode struct {
	Mode     string `json:"mode"`
	Settings struct {
		Model                 string  `json:"model"`
		ReasoningEffort       *string `json:"reasoning_effort"`
		DeveloperInstructions *string `json:"developer_instructions"`
	} `json:"settings"`
}

type turnResult struct {
	Turn wireTurn `json:"turn"`
}

type wireTurn struct {
	ID         string     `json:"id"`
	Status     string     `json:"status"`
	Error      *turnError `json:"error"`
	DurationMs *int64     `json:"durationMs"`
}

type turnError struct {
	Message           string          `json:"message"`
	CodexErrorInfo    json.RawMessage `json:"codexErrorInfo"`
	AdditionalDetails string          `json:"additionalDetails"`
}

// notification is the union of what the notifications we know carry.
type notification struct {
	ThreadID     string          `json:"threadId"`
	TurnID       string          `json:"turnId"`
	ItemID       string          `json:"itemId"`
	Turn         wireTurn        `json:"turn"`
	Item         json.RawMessage `json:"item"`
	Delta        string          `json:"delta"`
	SummaryIndex int             `json:"summaryIndex"`
	Error        *turnError      `json:"error"`
	WillRetry    bool            `json:"willRetry"`
	Message      string          `json:"message"`
	Summary      string          `json:"summary"`
	Details      string          `json:"details"`
	FromModel    string          `json:"fromModel"`
	ToModel      string          `json:"toModel"`
	TokenUsage   struct {
		Total tokens `json:"total"`
		Last  tokens `json:"last"`
	} `json:"tokenUsage"`
	Explanation string `json:"explanation"`
	Plan        []struct {
		Step   string `json:"step"`
		Status string `json:"status"`
	} `json:"plan"`
}

type tokens struct {
	Total      int64 `json:"totalTokens"`
	Input      int64 `json:"inputTokens"`
	Cached     int64 `json:"cachedInputTokens"`
	CacheWrite int64 `json:"cacheWriteInputTokens"`
	Output     int64 `json:"outputTokens"`
	Reasoning  int64 `json:"reasoningOutputTokens"`
}

func (t tokens) minus(o tokens) tokens {
	return tokens{
		t.Total - o.Total, t.Input - o.Input, t.Cached - o.Cached,
		t.CacheWrite - o.CacheWrite, t.Output - o.Output, t.Reasoning - o.Reasoning,
	}
}

// wireItem is the union of what the thread items we know carry.
type wireItem struct {
	ID   string `json:"id"`
	Type string `json:"type"`

	Text    string   `json:"text"`
	Phase   string   `json:"phase"`
	Summary []string `json:"summary"`

	Command          string `json:"command"`
	Cwd              string `json:"cwd"`
	Source           string `json:"source"`
	AggregatedOutput string `json:"aggregatedOutput"`
	ExitCode         *int   `json:"exitCode"`
	DurationMs       *int64 `json:"durationMs"`

	Changes []struct {
		Path string `json:"path"`
		Diff string `json:"diff"`
		Kind struct {
			Type string `json:"type"`
		} `json:"kind"`
	} `json:"changes"`

	Status string `json:"status"`
	Server string `json:"server"`
	Tool   string `json:"tool"`
	Query  string `json:"query"`

	// Content is a list of strings for reasoning and of inputs for messages.
	Content json.RawMessage `json:"content"`
}
