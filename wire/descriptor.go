package wire

import "encoding/json"

// Descriptor is what a driver says of itself, as data: the control plane
// validates a run's input with it without linking the driver. Its JSON is the
// one of driver.Descriptor.
type Descriptor struct {
	Name            string          `json:"name"`            // "codex", "command", "scripted"
	Version         string          `json:"version"`         // of the driver
	ProviderVersion string          `json:"providerVersion"` // what it was built against
	InputSchema     json.RawMessage `json:"inputSchema"`     // JSON Schema of a run's input
	PermissionModes []string        `json:"permissionModes"`
	Capabilities    Capabilities    `json:"capabilities"`
}

// Capabilities are the optional operations of a driver's sessions.
type Capabilities struct {
	Resume          bool `json:"resume"`
	Steer           bool `json:"steer"`
	Interrupt       bool `json:"interrupt"`
	RuntimeRequests bool `json:"runtimeRequests"`
	HostTools       bool `json:"hostTools"`
	Goals           bool `json:"goals"`
}
